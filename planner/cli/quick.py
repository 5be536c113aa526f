"""The quick calculators: `fit`, `box` and `price` answer one question of one model, and say how to go on to a plan."""
# ruff: noqa: D301, PLC0415 - a line of \b keeps the examples of a help text as written; imports are late on purpose

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any

import typer

from planner.cli.base import INFEASIBLE, JsonFile, check_outputs, check_picture, deliver, gpus_called, takes
from planner.cli.completion import complete_llm
from planner.core import (
    MOST_TYPED_TOKENS,
    InputError,
    Report,
    json_text,
    typed_count,
    typed_lengths,
    typed_token_time_s,
)

USUAL_GPUS = 8
"""Of a server where nothing is said: HGX and OAM boards hold as many."""
Model = Annotated[str, typer.Argument(help="Preset id, config.json or its folder.", autocompletion=complete_llm)]


@dataclass(frozen=True, kw_only=True)
class QuickOptions:
    """Requests and formats of a quick calculator, one field for each option."""

    lengths: str = "1024/1024"
    precision: str | None = None
    kv_cache: str | None = None
    engine: str = "vllm"

    @property
    def settings(self) -> dict[str, Any]:
        """As `box_curve` and `token_prices` take them. Raises InputError for lengths that are none."""
        found = typed_lengths(self.lengths)
        if not found or 0 in found:
            raise InputError("--lengths", self.lengths, "must be two numbers of tokens", "write e.g. 1500/400")
        formats = {"precision": self.precision, "kv_cache": self.kv_cache, "engine": self.engine}
        return {"lengths": found, **formats}


def fit(
    llm: Model,
    gpu: list[str] | None = None,
    context: str | None = None,
    engine: str = "vllm",
    json_file: JsonFile = None,
) -> None:
    """Say on which GPUs a model fits: formats and degrees side by side, and requests that fit at once.

    \b
    planner fit llama-3.3-70b-instruct
    planner fit qwen3-32b --gpu h100 --context 32k

    KV cache bytes per token stand in the first line. Exit code 3: it fits nowhere.
    """
    from hardware_db import load_hardware
    from planner.engine import DEGREES, Fit, fit_gpus, fit_headline, fit_record, fit_table
    from planner.llm import load_llm

    check_outputs(json_file)
    hardware, model = load_hardware(calibrations=""), load_llm(llm)
    named = [gpus_called("--gpu", name, hardware.skus) for name in gpu or ()]
    tokens = None if context is None else typed_count(context)
    if context is not None and not (tokens and 1.0 <= tokens < MOST_TYPED_TOKENS):
        raise InputError("--context", context, "must be a number of tokens", "write e.g. 32k or 32000")
    length = None if tokens is None else int(tokens)
    fits: list[Fit] = []
    for sku, most in named or ((None, None),):
        degrees = [tp for tp in DEGREES if most is None or tp <= most]
        ids = [] if sku is None else [sku.id]
        fits += fit_gpus(model, length, ids, engine=engine, degrees=degrees, hardware=hardware)
    fitting = [one for one in fits if one.requests]
    best = max(fitting, key=lambda one: (-one.tp, one.requests)) if fitting else None
    go_on = (
        ()
        if best is None
        else (f"planner memory {llm} --gpu {best.sku} --tp {best.tp}", f"planner box {llm} --gpu {best.sku}")
    )
    deliver(
        lambda: Report(fit_headline(model, fits), (fit_table(fits),), {"Go on": (*go_on, _plan_line(llm, 20.0))}),
        (json_file, lambda: json_text(fit_record(model, fits))),
    )
    if best is None:
        raise typer.Exit(INFEASIBLE)


@takes(QuickOptions)
def box(
    options: QuickOptions,
    llm: Model,
    gpu: str = "h100-sxm",
    gpus: int | None = None,
    tp: int | None = None,
    users: int = 64,
    tpot: str | None = None,
    plot: str | None = None,
    json_file: JsonFile = None,
) -> None:
    """Say what one server gives: tokens/s in all, per GPU and per user, TTFT and TPOT, at 1 to 256 users.

    \b
    planner box llama-3.3-70b-instruct --gpu h100 --gpus 8 --users 64 --precision fp8
    planner box qwen3-32b --gpus 2 --lengths 1500/400 --tpot 50

    Each user sends the next request when the last one is answered. Exit code 3 is not used: a server that does not
    start is an error that says why.
    """
    from hardware_db import load_hardware
    from planner.llm import load_llm
    from planner.serving import USERS, box_curve, box_headline, box_record, box_table

    check_outputs(json_file)
    check_picture(plot)
    settings = options.settings
    called, count = gpus_called("--gpu", gpu, load_hardware(calibrations="").skus, gpus)
    sku = called.id
    within_s = None if tpot is None else typed_token_time_s(tpot)
    if tpot is not None and within_s is None:
        raise InputError("--tpot", tpot, "must be a time", "write e.g. 50, 50ms or 20 tokens/s")
    curve = sorted({*USERS, users})
    found = box_curve(load_llm(llm), sku, gpus=count or USUAL_GPUS, tp=tp, users=curve, at=users, **settings)
    lines = [_plan_line(llm, found.at(users).requests_per_s, options.lengths, sku)]
    carried = None if within_s is None else found.users_within(within_s)
    if within_s is not None:
        lines.insert(0, f"{carried:,} users within a mean TPOT of {1e3 * within_s:g} ms")
    deliver(
        lambda: Report(box_headline(found, users), (box_table(found),), {"Go on": lines}),
        (json_file, lambda: json_text({**box_record(found), "users_within": carried})),
        (plot, lambda: _picture(found, users)),
    )


def _picture(found: Any, users: int) -> str:  # noqa: ANN401 - imported late
    """The curve as a page of its own."""
    from planner.charts import box_chart
    from planner.serving import box_headline, box_record

    return str(box_chart(box_record(found)["points"], box_headline(found, users)).to_html())


@takes(QuickOptions)
def price(options: QuickOptions, llm: Model, json_file: JsonFile = None) -> None:
    """Say what a million tokens cost on each GPU, by the users that share it, beside hosted APIs.

    \b
    planner price llama-3.1-8b
    planner price llama-3.3-70b-instruct --precision fp8 --lengths 1500/400

    Over GPUs with a price and measured step times, the cheapest first; a server is the smallest that the model fits on,
    or twice that.
    """
    from hardware_db import load_hardware, usual_price
    from planner.llm import api_prices_of, load_llm
    from planner.serving import price_record, price_tables, token_prices

    check_outputs(json_file)
    settings = options.settings
    few = load_hardware(calibrations=f"*__{options.engine}-*")
    hardware, model = few if few.calibrations else load_hardware(), load_llm(llm)
    prices = {sku: known for sku in hardware.skus if (known := usual_price(hardware, sku, date.today()))}
    found = token_prices(model, prices, hardware=hardware, **settings)
    apis = api_prices_of(model.id, date.today())
    lengths = settings["lengths"]
    if found:
        best = found[0]
        rate = best.box.points[-1].requests_per_s
        said = (
            f"{model.id}: from {best.least_usd:.3g} USD per million output tokens, on {best.box.config.sku.short_name}."
        )
        go_on = [_plan_line(llm, rate, options.lengths), "planner explain SCENARIO --only api   from which load on"]
    else:
        said, go_on = f"{model.id} fits on no server with a price and measured step times.", [f"planner fit {llm}"]
    deliver(
        lambda: Report(said, price_tables(found, apis, lengths), {"Go on": go_on}),
        (json_file, lambda: json_text(price_record(found, apis, lengths))),
    )
    if not found:
        raise typer.Exit(INFEASIBLE)


def _plan_line(llm: str, rate_per_s: float, lengths: str = "1500/400", sku: str = "") -> str:
    only = f" --set search.skus=[{sku}]" if sku else ""
    return f"planner plan --llm {llm} --rate {rate_per_s:.3g} --lengths {lengths}{only}"
