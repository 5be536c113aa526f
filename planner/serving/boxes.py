"""One server under a fixed number of users, in seconds: throughput against interactivity, and what a token costs.

Every user sends the next request as soon as the last one is answered (think time 0), as benchmark clients and the
dashboards made of them do. Figures are those of the steady part of `evaluate`'s closed loop. By Little's law N users
whose answers take a mean of E2E are served N / E2E requests/s; so a server gives N * output / E2E tokens/s, each user
sees one every TPOT, and a million tokens cost price per hour / 3600 / (tokens/s) * 10^6.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hardware_db import HardwareDb, Price, load_hardware, select_calibration
from planner.core import InputError, PlannerError, Table, UnknownNameError, money, number_of, rebuilt, significant
from planner.engine import ReplicaConfig, memory
from planner.llm import ApiPrice, LlmSpec, Precision, format_words, load_llm
from planner.serving.performance import evaluate
from planner.serving.types import Deployment, Pool, Role
from planner.workload import ClosedLoop, RequestClass, TokenLengths, Workload

USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Of the curve. A choice: those of public dashboards."""
PRICED_USERS = (1, 32, 256)
"""Of the table of prices. A choice: a column each."""
USUAL_LENGTHS = (1024, 1024)
"""Input and output tokens where none are given. A choice: what public dashboards show first."""
LENGTH_SPREAD = 0.2
"""Answers are longer and shorter by up to this share, evenly. A choice: users whose answers are all alike would send in
step for ever, which no service sees."""
MILLION, HOUR_S = 1e6, 3600.0
"""Definitions."""


@dataclass(frozen=True)
class BoxPoint:
    """A server under a number of users.

    Attributes:
        users: of the whole server.
        requests_per_s: answered [1/s].
        output_tokens_per_s: of the whole server [1/s].
        ttft_s: mean [s].
        tpot_s: mean [s].
        e2e_s: mean [s].
    """

    users: int
    requests_per_s: float
    output_tokens_per_s: float
    ttft_s: float
    tpot_s: float
    e2e_s: float

    @property
    def tokens_per_s_per_user(self) -> float:
        """Interactivity: output tokens a user sees per second, once they come [1/s]."""
        return 1.0 / self.tpot_s if self.tpot_s else 0.0


@dataclass(frozen=True)
class BoxCurve:
    """A server of identical replicas, and what it gives.

    Attributes:
        config: one replica.
        replicas: that fill the server.
        lengths: of every request: input and output tokens.
        points: by users.
    """

    config: ReplicaConfig
    replicas: int
    lengths: tuple[int, int]
    points: tuple[BoxPoint, ...]

    @property
    def gpus(self) -> int:
        """Of the server."""
        return self.replicas * self.config.parallelism.gpus

    def at(self, users: int) -> BoxPoint:
        """The server under so many users, whether on the curve or not."""
        return next((point for point in self.points if point.users == users), None) or _point(self, users)

    def users_within(self, tpot_s: float, most: int = 4096) -> int:
        """Most users, up to `most`, whose mean TPOT stays within `tpot_s` [s]; 0 where that of one does not."""
        inside, outside = 0, most + 1
        while outside - inside > 1:
            users = min(max(2 * inside, 1), most) if outside > most else (inside + outside) // 2
            if _point(self, users).tpot_s <= tpot_s:
                inside = users
            else:
                outside = users
            if inside == most:
                break
        return inside


def box_curve(
    llm: str | LlmSpec,
    sku: str,
    *,
    gpus: int = 8,
    tp: int | None = None,
    lengths: tuple[int, int] = USUAL_LENGTHS,
    users: Sequence[int] = USERS,
    at: int = 64,
    precision: str | Precision | None = None,
    kv_cache: str | None = None,
    engine: str = "vllm",
    hardware: HardwareDb | None = None,
) -> BoxCurve:
    """What one server gives at each number of users, in the steady part of a closed loop without think time.

    Args:
        llm: a model, the name of a packaged one, or the path of a config.json.
        sku: id of the GPU.
        gpus: of the server; replicas fill it.
        tp: GPUs of a replica; None: what gives most tokens at `at` users.
        lengths: input and output tokens of every request.
        users: points of the curve.
        at: users at which the degree is chosen.
        precision: number formats, or that of the weights; None: the checkpoint's own.
        kv_cache: number format of the cache; None: that of the checkpoint.
        engine: id of an engine profile.
        hardware: records to look names up in; None: the packaged ones.

    Returns:
        The server and its curve.

    Raises:
        UnknownNameError: no such model, GPU or engine.
        InputError: a degree that does not divide the GPUs; no degree at which the model fits.
    """
    records = hardware or _hardware_of(sku)
    if sku not in records.skus:
        raise UnknownNameError("gpu", sku, records.skus)
    model = load_llm(llm) if isinstance(llm, str) else llm
    if gpus < 1 or min(*lengths, *users, at) < 1 or (tp is not None and (tp < 1 or gpus % tp)):
        value = f"{gpus} GPUs, TP{tp}, lengths {lengths}, users {(*users, at)}"
        raise InputError("box", value, "counts are >= 1, and the degree divides the GPUs", "give e.g. --gpus 8 --tp 4")
    degrees = [tp] if tp else [degree for degree in range(1, gpus + 1) if gpus % degree == 0]
    settings = {"precision": precision, "kv_cache": kv_cache, "engine": engine, "hardware": records}
    boxes, reason = _boxes(model, sku, degrees, gpus, lengths, settings)
    if not boxes:
        fix = "see `planner fit` for degrees and formats that do"
        raise InputError(
            "box", f"{model.id} on {gpus} × {records.skus[sku].short_name}", f"does not start: {reason}", fix
        )
    best = max(boxes, key=lambda box: _point(box, at).output_tokens_per_s)
    return BoxCurve(best.config, best.replicas, lengths, tuple(_point(best, count) for count in users))


def _hardware_of(sku: str) -> HardwareDb:
    """The packaged records with the calibrations of one SKU alone; with all where it borrows its relatives'."""
    own = load_hardware(calibrations=f"{sku}__*")
    return own if own.calibrations else load_hardware()


def _boxes(
    llm: LlmSpec,
    sku: str,
    degrees: Iterable[int],
    gpus: int,
    lengths: tuple[int, int],
    settings: Mapping[str, Any],
    enough: float = math.inf,
) -> tuple[list[BoxCurve], str]:
    """A server at each degree at which it starts, without points; and why the last one that does not start does not.

    Degrees beyond the first at which the KV cache holds `enough` requests are left out.
    """
    boxes, reason, longest = [], "", lengths[0] + math.ceil(lengths[1] * (1.0 + LENGTH_SPREAD))
    calibration = select_calibration(settings["hardware"], sku, settings["engine"])
    for tp in degrees:
        try:
            found = memory(llm, sku, tp=tp, max_request_tokens=longest, propose=False, **settings)
        except InputError as error:
            if error.field in ("max_request_tokens", "precision", "kv_cache"):
                raise
            reason = str(error)
            continue
        if found.starts:
            boxes.append(BoxCurve(rebuilt(found.replica, calibration=calibration), max(1, gpus // tp), lengths, ()))
        if found.starts and found.concurrency >= enough:
            break
        reason = found.reason
    return boxes, reason


def _point(box: BoxCurve, users: int) -> BoxPoint:
    """The server under so many users."""
    deployment = Deployment(pools=(Pool(role=Role.MIXED, config=box.config, replicas=box.replicas),))
    asked, written = box.lengths
    spread = [max(1, round(written * (1.0 + share * LENGTH_SPREAD))) for share in (-1.0, -0.5, 0.0, 0.5, 1.0)]
    lengths = TokenLengths.from_pairs([asked] * len(spread), spread, [1.0] * len(spread), source="given")
    workload = Workload(arrivals=ClosedLoop(concurrency=users), classes=(RequestClass(lengths=lengths),))
    whole = evaluate(deployment, workload, figures=False)
    steady = whole.steady or whole
    rate = users / steady.e2e.mean_s
    means = (one.mean_s for one in (steady.ttft, steady.tpot, steady.e2e))
    return BoxPoint(users, rate, rate * lengths.mean_output, *means)


# --- money ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenPrice:
    """What tokens of one server cost.

    Attributes:
        box: one replica, by users.
        price: of one GPU-hour.
    """

    box: BoxCurve
    price: Price

    def usd_per_million(self, point: BoxPoint) -> float:
        """USD per million output tokens, their prompts included."""
        return self.box.gpus * self.price.usd_per_gpu_hour / HOUR_S / point.output_tokens_per_s * MILLION

    @property
    def least_usd(self) -> float:
        """At the number of users at which it is lowest [USD per million output tokens]."""
        return min(self.usd_per_million(point) for point in self.box.points)


def token_prices(
    llm: str | LlmSpec,
    prices: Mapping[str, Price],
    *,
    lengths: tuple[int, int] = USUAL_LENGTHS,
    users: Sequence[int] = PRICED_USERS,
    precision: str | Precision | None = None,
    kv_cache: str | None = None,
    engine: str = "vllm",
    hardware: HardwareDb,
) -> tuple[TokenPrice, ...]:
    """USD per million tokens on each GPU, of the smallest server that the model fits on, the cheapest first.

    Args:
        llm: a model, the name of a packaged one, or the path of a config.json.
        prices: of a GPU-hour by id of the GPU.
        lengths: input and output tokens of every request.
        users: numbers of users.
        precision: number formats, or that of the weights; None: the checkpoint's own.
        kv_cache: number format of the cache; None: that of the checkpoint.
        engine: id of an engine profile.
        hardware: records; GPUs without measured step times of their own are left out.

    Returns:
        By GPU, at the smallest degree that fits, or the next if its KV cache is too small for most users and that is
        cheaper.

    Raises:
        UnknownNameError: no such model or engine.
        InputError: more tokens than the model's context.
    """
    model = load_llm(llm) if isinstance(llm, str) else llm
    settings = {"precision": precision, "kv_cache": kv_cache, "engine": engine, "hardware": hardware}
    measured = {calibration.sku for calibration in hardware.calibrations}
    found = []
    for sku, price in prices.items():
        if sku in measured:
            degrees = [1 << power for power in range(hardware.skus[sku].node.gpus.bit_length())]
            try:
                boxes, _ = _boxes(model, sku, degrees, 1, lengths, settings, max(users))
            except InputError:
                raise
            except PlannerError:
                continue
            most = [replace(box, points=(_point(box, max(users)),)) for box in boxes[:2]]
            if most:
                box = min(most, key=lambda one: TokenPrice(one, price).least_usd)
                found.append(TokenPrice(replace(box, points=tuple(box.at(count) for count in users)), price))
    return tuple(sorted(found, key=lambda one: one.least_usd))


def api_usd_per_million(api: ApiPrice, lengths: tuple[int, int]) -> float:
    """What an API asks for a million output tokens and the prompts they answer.

    Args:
        api: its prices.
        lengths: input and output tokens of every request.

    Returns:
        Output price + input / output * input price [USD per million output tokens].
    """
    return api.usd_per_million_output_tokens + lengths[0] / lengths[1] * api.usd_per_million_input_tokens


# --- shown ------------------------------------------------------------------------------------------------------------


def box_headline(box: BoxCurve, users: int) -> str:
    """The answer in a sentence.

    Args:
        box: of `box_curve`.
        users: asked about.

    Returns:
        Server, throughput and latencies.
    """
    point, config = box.at(users), box.config
    return (
        f"{config.llm.id} in {format_words(config.llm, config.precision)} on {box.gpus} × {config.sku.short_name} "
        f"({box.replicas} × TP{config.parallelism.tp}, {config.engine.name}), {users:,} users, "
        f"{box.lengths[0]:,}/{box.lengths[1]:,} tokens: "
        f"{point.output_tokens_per_s:,.0f} tokens/s, {point.output_tokens_per_s / box.gpus:,.0f} per GPU, "
        f"{point.tokens_per_s_per_user:,.1f} per user; TTFT {1e3 * point.ttft_s:,.0f} ms, "
        f"TPOT {1e3 * point.tpot_s:.3g} ms (means)."
    )


def box_table(box: BoxCurve) -> Table:
    """Throughput against interactivity.

    Args:
        box: of `box_curve`.

    Returns:
        A row for each number of users.
    """
    note = "Output tokens; means of the steady part. Every user sends the next request when the last one is answered."
    return Table.of(
        f"{box.config.words}, {number_of(box.replicas, 'replica')}",
        box.points,
        {
            "users": lambda point: f"{point.users:,}",
            "tokens/s": lambda point: f"{point.output_tokens_per_s:,.0f}",
            "per GPU": lambda point: f"{point.output_tokens_per_s / box.gpus:,.0f}",
            "per user": lambda point: significant(point.tokens_per_s_per_user),
            "requests/s": lambda point: significant(point.requests_per_s),
            "TTFT ms": lambda point: f"{1e3 * point.ttft_s:,.0f}",
            "TPOT ms": lambda point: significant(1e3 * point.tpot_s),
            "E2E s": lambda point: significant(point.e2e_s),
        },
        note,
    )


def box_record(box: BoxCurve) -> dict[str, Any]:
    """The same as data.

    Args:
        box: of `box_curve`.

    Returns:
        The server, and its points.
    """
    return {
        "llm": box.config.llm.id,
        "sku": box.config.sku.id,
        "gpus": box.gpus,
        "tp": box.config.parallelism.tp,
        "replicas": box.replicas,
        "precision": box.config.precision.model_dump(mode="json"),
        "input_tokens": box.lengths[0],
        "output_tokens": box.lengths[1],
        "points": [
            {
                **vars(point),
                "output_tokens_per_s_per_gpu": point.output_tokens_per_s / box.gpus,
                "tokens_per_s_per_user": point.tokens_per_s_per_user,
            }
            for point in box.points
        ],
    }


def price_tables(prices: Sequence[TokenPrice], apis: Sequence[ApiPrice], lengths: tuple[int, int]) -> tuple[Table, ...]:
    """GPUs and hosted APIs.

    Args:
        prices: of `token_prices`.
        apis: listed for the model.
        lengths: input and output tokens of every request.

    Returns:
        A table of GPUs by users, and one of APIs where any are listed.
    """
    users = [point.users for point in prices[0].box.points] if prices else []
    rows = tuple(
        (
            f"{one.box.gpus} × {one.box.config.sku.short_name}",
            *(significant(one.usd_per_million(point)) for point in one.box.points),
            money(one.price.usd_per_gpu_hour),
            f"{one.price.provider}, {one.price.retrieved_on}"
            + f", by the {one.price.block_gpus}" * (one.price.block_gpus > one.box.gpus),
        )
        for one in prices
    )
    note = (
        "USD per million output tokens, prompts included, on one server that is always full: load that varies and "
        "targets make it dearer. By the 8: sold eight at once only."
    )
    columns = ("server", *(number_of(count, "user") for count in users), "USD per GPU-hour", "price of")
    own = Table(f"Requests of {lengths[0]:,}/{lengths[1]:,} tokens", columns, rows, note)
    hosted = Table.of(
        "Hosted APIs",
        sorted(apis, key=lambda api: api_usd_per_million(api, lengths)),
        {
            "API": lambda api: f"{api.provider} {api.served_as}",
            "input": lambda api: significant(api.usd_per_million_input_tokens),
            "output": lambda api: significant(api.usd_per_million_output_tokens),
            "same requests": lambda api: significant(api_usd_per_million(api, lengths)),
            "read on": lambda api: api.read_on.isoformat(),
        },
        "USD per million tokens; same requests: output price + input / output x input price.",
    )
    return (own, hosted) if apis else (own,)


def price_record(prices: Sequence[TokenPrice], apis: Sequence[ApiPrice], lengths: tuple[int, int]) -> dict[str, Any]:
    """The same as data.

    Args:
        prices: of `token_prices`.
        apis: listed for the model.
        lengths: input and output tokens of every request.

    Returns:
        USD per million output tokens by GPU and users, and of each API.
    """
    return {
        "servers": [
            {
                **box_record(one.box),
                "price": one.price.model_dump(mode="json"),
                "usd_per_million_output_tokens": [one.usd_per_million(point) for point in one.box.points],
            }
            for one in prices
        ],
        "apis": [
            {**api.model_dump(mode="json"), "usd_per_million_with_prompts": api_usd_per_million(api, lengths)}
            for api in apis
        ],
    }
