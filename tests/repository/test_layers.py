"""The layers of docs/design.md, held against what every module really imports and does.

Everything is read with `ast`, nothing is run (but for two subprocesses that watch what an import loads).
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.places import ROOT

SIDE = 9
ABOVE = "everything above"


class Row(NamedTuple):
    """One module (with its submodules): its layer, what it may import of ours, what of others.

    Names are separated by blanks; ``planner.`` is left out of `ours`. Standard library is always allowed.
    """

    layer: int
    module: str
    ours: str
    third_party: str


# In order: a row may only name rows above it, which is what makes the order a layering. Change it together with
# the table in docs/design.md.
TABLE = (
    Row(0, "planner.core.errors", "", "pydantic"),
    Row(0, "planner.core.versions", "errors", ""),
    Row(0, "hardware_db.schema", "errors", "pydantic"),
    Row(1, "hardware_db", "errors versions hardware_db.schema", "pydantic"),
    Row(1, "planner.core.record", "hardware_db.schema", ""),
    Row(1, "planner.core.latency", "errors", "numpy"),
    Row(1, "planner.core.workload", "errors hardware_db.schema", "numpy pydantic"),
    Row(1, "planner.core.tables", "workload", ""),
    Row(1, "planner.llm.layers", "errors hardware_db.schema", "pydantic"),
    Row(1, "planner.llm.hf_config", "errors hardware_db.schema llm_layers", "pydantic"),
    Row(1, "planner.llm.hf_layers", "errors hardware_db.schema llm_layers hf_config", "pydantic"),
    Row(1, "planner.llm.hf_families", "errors hardware_db.schema llm_layers hf_config hf_layers", "pydantic"),
    Row(1, "planner.llm.hf_quantisation", "errors hardware_db.schema llm_layers hf_config", "pydantic"),
    Row(
        1,
        "planner.llm.spec",
        "errors hardware_db.schema llm_layers hf_config hf_families hf_quantisation",
        "pydantic",
    ),
    Row(1, "planner.llm.hub", "errors hf_config llm_spec", "huggingface_hub"),
    Row(1, "planner.llm.sizes", "errors hardware_db.schema llm_layers llm_spec hub", "pydantic"),
    Row(1, "planner.traffic.text_files", "errors", ""),
    Row(1, "planner.traffic.trace", "errors hardware_db.schema workload", "numpy pydantic"),
    Row(1, "planner.traffic.rows", "errors traces", ""),
    Row(1, "planner.traffic.requests", "errors traces trace_rows", "numpy"),
    Row(1, "planner.traffic.benchmark_results", "errors trace_rows trace_requests", ""),
    Row(1, "planner.traffic.conversations", "errors trace_rows", ""),
    Row(
        1,
        "planner.traffic.formats",
        "errors text_files traces trace_rows trace_requests trace_benchmarks trace_conversations",
        "numpy",
    ),
    Row(2, "planner.roofline.kernel_forms", "errors hardware_db.schema", "numpy"),
    Row(2, "planner.roofline.kernels", "errors hardware_db.schema kernel_forms", "numpy"),
    Row(2, "planner.roofline.expert_load", "errors", "numpy"),
    Row(2, "planner.roofline", "errors hardware_db.schema llm kernel_forms kernels routing", "numpy pydantic"),
    Row(2, "planner.queueing", "errors latency workload", "numpy scipy"),
    Row(2, "planner.optimizer", "errors hardware_db.schema", "highspy numpy pulp pydantic scipy"),
    Row(3, "planner.engine.lookup", "roofline", "numpy"),
    Row(3, "planner.engine.step_times", "errors hardware_db.schema llm kernels roofline tabulated", "numpy"),
    Row(3, "planner.engine.scheduler", "errors hardware_db.schema", "pydantic"),
    Row(3, "planner.engine.replica", "errors hardware_db.schema llm roofline schedule steps", "numpy pydantic"),
    Row(3, "planner.serving.long_prompt", "errors replica", ""),
    Row(3, "planner.engine.lora", "errors workload llm roofline schedule replica", "numpy"),
    Row(
        3, "planner.serving.types", "errors hardware_db.schema latency workload llm roofline replica", "numpy pydantic"
    ),
    Row(4, "planner.serving.uncertainty", "workload llm roofline replica deployment", ""),
    Row(4, "planner.fleet.calibration_bounds", "errors hardware_db.schema hardware_db records replica deployment", ""),
    Row(4, "planner.serving.pool", "errors workload adapters roofline queueing replica deployment", "numpy"),
    Row(4, "planner.serving.closed_loop_flow", "latency workload roofline replica deployment pool_model", "numpy"),
    Row(4, "planner.serving.closed_loop", "workload deployment pool_model closed_flow", "numpy"),
    Row(4, "planner.serving.closed_loop_disaggregated", "workload replica deployment pool_model closed_flow", "numpy"),
    Row(4, "planner.serving.router", "latency workload queueing deployment", "numpy"),
    Row(4, "planner.serving.prefix_cache", "workload queueing adapters deployment", "numpy"),
    Row(4, "planner.serving.static_batching", "errors workload roofline queueing schedule replica deployment", "numpy"),
    Row(
        4,
        "planner.serving.stage",
        "errors latency workload roofline queueing schedule replica deployment pool_model routed_pools prefix_model "
        "static_batches",
        "numpy",
    ),
    Row(4, "planner.serving.kv_transfer", "latency workload queueing replica deployment", "numpy"),
    Row(4, "planner.serving.request_classes", "latency workload queueing schedule deployment", "numpy"),
    Row(
        4,
        "planner.serving.performance",
        "latency workload queueing schedule deployment uncertainty closed_loop closed_tandem static_batches stages "
        "handover request_classes routed_pools",
        "numpy",
    ),
    Row(4, "planner.serving.rates", "errors workload deployment performance stages", "numpy scipy"),
    Row(
        4,
        "planner.simulator",
        "errors hardware_db.schema latency workload llm roofline tabulated steps schedule replica adapters deployment "
        "uncertainty",
        "numpy",
    ),
    Row(5, "planner.search.types", "errors hardware_db workload llm replica deployment", "pydantic"),
    Row(
        5,
        "planner.search.swap_sku",
        "errors hardware_db workload records roofline replica deployment pool_model stages",
        "",
    ),
    Row(5, "planner.search.bounds_prompts", "workload roofline queueing replica deployment pool_model", "numpy"),
    Row(
        5,
        "planner.search.bounds",
        "workload roofline queueing replica deployment prefix_model stages configurations prompt_times",
        "numpy scipy",
    ),
    Row(
        5,
        "planner.search.cache_keys",
        "errors schedule replica deployment prefix_model pool_model stages configurations screening",
        "pydantic",
    ),
    Row(
        5,
        "planner.search.slo_margin",
        "latency workload schedule deployment stages handover performance rates configurations",
        "",
    ),
    Row(
        5,
        "planner.search.capacity",
        "workload deployment stages rates configurations screening machines judging",
        "numpy",
    ),
    Row(
        5,
        "planner.search.enumerate",
        "errors hardware_db workload tables llm replica deployment configurations machines",
        "",
    ),
    Row(5, "planner.traffic.services", "errors hardware_db workload llm", "pydantic"),
    Row(5, "planner.fleet.slices", "errors workload optimizer schedule demand_types", "numpy"),
    Row(5, "planner.traffic.profiles", "errors hardware_db.schema traces demand_types", "numpy pydantic"),
    Row(6, "planner.supply.types", ABOVE, "pydantic"),
    Row(6, "planner.supply.spares", ABOVE, ""),
    Row(6, "planner.supply.prices", ABOVE, ""),
    Row(6, "planner.supply.price_lists", ABOVE, ""),
    Row(6, "planner.supply.purchase_options", ABOVE, ""),
    Row(6, "planner.supply.resources", ABOVE, ""),
    Row(6, "planner.fleet.types", ABOVE, "pydantic"),
    Row(6, "planner.fleet.columns", ABOVE, ""),
    Row(6, "planner.fleet.pairing", ABOVE, ""),
    Row(6, "planner.fleet.verification", ABOVE, ""),
    Row(6, "planner.fleet.latency_ranges", ABOVE, ""),
    Row(6, "planner.fleet.costs", ABOVE, ""),
    Row(6, "planner.fleet.search", ABOVE, ""),
    Row(6, "planner.fleet.planning", ABOVE, "threadpoolctl"),
    Row(6, "planner.analysis.types", ABOVE, "pydantic"),
    Row(6, "planner.analysis.perturbations", ABOVE, "numpy"),
    Row(6, "planner.analysis.resolve", ABOVE, ""),
    Row(6, "planner.analysis.sensitivity", ABOVE, ""),
    Row(6, "planner.analysis.api_prices", ABOVE, "pydantic"),
    Row(6, "planner.analysis.why", ABOVE, ""),
    Row(6, "planner.analysis.changes", ABOVE, ""),
    Row(6, "planner.systems.variants", ABOVE, ""),
    Row(6, "planner.systems.catalogue", ABOVE, ""),
    Row(6, "planner.systems.comparison", ABOVE, ""),
    Row(6, "planner.validation.measured_runs", ABOVE, "pydantic"),
    Row(6, "planner.validation.predict", ABOVE, "numpy"),
    Row(7, "planner.traffic.prometheus_series", ABOVE, "numpy"),
    Row(7, "planner.traffic.histograms", ABOVE, "numpy"),
    Row(7, "planner.traffic.prometheus", ABOVE, "numpy"),
    Row(7, "planner.scenario.snippets", ABOVE, "yaml"),
    Row(7, "planner.scenario.files", ABOVE, "yaml"),
    Row(7, "planner.scenario.types", ABOVE, "pydantic"),
    Row(7, "planner.scenario.read", ABOVE, "pydantic yaml"),
    Row(7, "planner.scenario.url", ABOVE, "yaml"),
    Row(7, "planner.scenario.plan_files", ABOVE, ""),
    Row(7, "planner.launch.fleet", ABOVE, ""),
    Row(7, "planner.report.glossary", ABOVE, ""),
    Row(7, "planner.scenario.slos", ABOVE, "pydantic"),
    Row(7, "planner.analysis.headline", ABOVE, ""),
    Row(7, "planner.analysis.purchase_alternatives", ABOVE, ""),
    Row(7, "planner.scenario.user_hardware", ABOVE, "pydantic"),
    Row(7, "planner.scenario.catalogue", ABOVE, ""),
    Row(7, "planner.validation.engine_fit", ABOVE, "numpy scipy"),
    Row(7, "planner.validation.benchmark_files", ABOVE, "numpy pydantic scipy"),
    Row(7, "planner.validation.parity_plot", ABOVE, ""),
    Row(7, "planner.validation.scoreboard", ABOVE, ""),
    Row(7, "planner.validation.accuracy", ABOVE, ""),
    Row(7, "planner.report.performance", ABOVE, ""),
    Row(7, "planner.report.plan", ABOVE, ""),
    Row(7, "planner.studies.side_by_side", ABOVE, ""),
    Row(7, "planner.charts", ABOVE, "altair numpy pandas"),
    Row(7, "planner.report.records", ABOVE, ""),
    Row(7, "planner.report.comparison", ABOVE, ""),
    Row(7, "planner.report.json_documents", ABOVE, ""),
    Row(7, "planner.report.explanation", ABOVE, ""),
    Row(7, "planner.scenario.request_fixes", ABOVE, ""),
    Row(7, "planner.scenario.input_fixes", ABOVE, "pydantic"),
    Row(7, "planner.launch", ABOVE, "numpy yaml"),
    Row(7, "planner.report.html", ABOVE, ""),
    Row(7, "planner.report.what_if", ABOVE, ""),
    Row(7, "planner.report.data_frames", ABOVE, "pandas"),
    Row(7, "planner.studies.sweep_log", ABOVE, ""),
    Row(7, "planner.studies.sweep_result", ABOVE, "pandas"),
    Row(7, "planner.cli.completion", ABOVE, ""),
    Row(8, "planner", ABOVE, ""),
    Row(8, "planner.report.terminal", ABOVE, "rich"),
    Row(8, "planner.studies.sweeps", ABOVE, "yaml"),
    Row(8, "planner.cli.base", ABOVE, "typer"),
    Row(8, "planner.cli.deployment", ABOVE, "typer"),
    Row(8, "planner.cli.measured", ABOVE, "typer"),
    Row(8, "planner.cli.compare", ABOVE, "typer"),
    Row(8, "planner.cli.explain", ABOVE, "typer"),
    Row(8, "planner.cli.export", ABOVE, "typer"),
    Row(8, "planner.cli.imports", ABOVE, "typer"),
    Row(8, "planner.cli.sweep", ABOVE, "typer"),
    Row(8, "planner.cli.commands", ABOVE, "typer"),
    Row(8, "planner.web", ABOVE, "pandas streamlit"),
    Row(8, "app", ABOVE, "streamlit"),
    Row(
        SIDE,
        "calibration",
        "errors versions hardware_db.schema hardware_db llm_layers llm kernel_forms kernels routing roofline replica",
        "flashinfer numpy pyarrow rich scipy torch typer",
    ),
)
NAMES = tuple(row.module for row in TABLE)
KERNELS = ("planner.roofline", "planner.queueing", "planner.optimizer")
IMPORTERS = {
    "pulp": ("planner.optimizer",),
    "altair": ("planner.charts",),
    "streamlit": ("planner.web", "app"),
    "typer": (
        "planner.cli.base",
        "planner.cli.deployment",
        "planner.cli.measured",
        "planner.cli.compare",
        "planner.cli.explain",
        "planner.cli.export",
        "planner.cli.imports",
        "planner.cli.sweep",
        "planner.cli.commands",
        "calibration",
    ),
    "torch": ("calibration",),
}
FACADE = "planner"
Scan = Callable[[str, str], list[str]]
FIRST_LAYER_WITH_EFFECTS = 6
READERS = (
    "hardware_db",
    "hardware_db.loader",
    "planner.llm.sizes",
    "planner.llm.hf_config",
    "planner.traffic.trace",
    "planner.traffic.text_files",
    "planner.llm.hub",
    "planner.traffic.profiles",
)
"""Modules below layer 6 that read packaged data, or the one file the caller names."""
TIMED = tuple(("time", f"planner.optimizer.{name}") for name in ("large", "large_master", "large_period"))
"""Imports of the clock below layer 6: a solver that is given a time limit has to look."""


def _sources() -> dict[str, Path]:
    """Module name -> file, for every module of the product that is there."""
    files = [path for package in ("planner", "hardware_db", "calibration") for path in (ROOT / package).rglob("*.py")]
    files += [path for path in [ROOT / "app.py"] if path.exists()]
    return {_module_name(path.relative_to(ROOT)): path for path in sorted(files)}


def _module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = _sources()


def _row(module: str) -> Row | None:
    """The most specific row of a module. The facade's row covers itself only, so that a new module is noticed."""
    fitting = [r for r in TABLE if module == r.module or (r.module != FACADE and module.startswith(r.module + "."))]
    return max(fitting, key=lambda r: len(r.module), default=None)


def _allowed(row: Row) -> set[str]:
    if row.ours == ABOVE:
        return set(NAMES[: NAMES.index(row.module)])
    return {name if name.startswith("hardware_db") else f"planner.{name}" for name in row.ours.split()}


class Import(NamedTuple):
    """One imported module, where, and whether it runs when its module is loaded."""

    module: str
    line: int
    at_load: bool
    type_checking: bool


def _imports(tree: ast.AST, at_load: bool = True, type_checking: bool = False) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, at_load, type_checking) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for target in {_deepest(base, alias.name) for alias in node.names}:
                yield Import(target, node.lineno, at_load, type_checking)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _imports(ast.Module(body=node.body, type_ignores=[]), at_load, type_checking=True)
            yield from _imports(ast.Module(body=node.orelse, type_ignores=[]), at_load, type_checking)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(node, at_load and not inside, type_checking)


def _deepest(base: str, name: str) -> str:
    """`from planner import charts` imports planner.charts; `from planner import plan` imports planner."""
    full = f"{base}.{name}"
    return full if full in SOURCES or full in NAMES else base


def layer_violations(module: str, source: str) -> list[str]:
    """What a module imports against the table, one line each."""
    row = _row(module)
    if row is None:
        return [f"{module} is in no layer: add it to TABLE here and to the table in docs/design.md"]
    found = []
    for item in _imports(ast.parse(source)):
        if module == FACADE and item.type_checking:
            continue
        where = f"{module}:{item.line} imports {item.module}"
        top = item.module.split(".")[0]
        target = _row(item.module)
        if item.module.startswith("."):
            found.append(f"{where}: relative; write the full name")
        elif target is not None:
            if target != row and target.module not in _allowed(row):
                found.append(f"{where}: layer {row.layer} may import of ours: {row.ours or 'nothing'}")
        elif top in {"planner", "hardware_db", "calibration", "app"}:
            found.append(f"{where}: which is in no layer")
        elif top not in sys.stdlib_module_names and top not in row.third_party.split():
            found.append(f"{where}: third party allowed here: {row.third_party or 'none'}")
        elif top == "torch" and item.at_load and not item.type_checking:
            found.append(f"{where}: torch is optional, import it inside the function that needs it")
    return found


FILE_CALLS = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "loadtxt", "genfromtxt", "fromfile"}
CLOCK_CALLS = {"now", "utcnow", "today"}
EFFECT_MODULES = {"os", "time", "random", "secrets", "uuid", "socket", "subprocess", "urllib", "http", "tempfile"}
GLOBAL_CHANCE = re.compile(r"(np|numpy)\.random\.(?!default_rng$|Generator$|SeedSequence$|PCG64$)\w+$")


def effect_violations(module: str, source: str) -> list[str]:
    """Files, environment, clock and unseeded chance in a module below layer 6, one line each."""
    tree = ast.parse(source)
    found = [
        f"{module}:{item.line} imports {item.module}"
        for item in _imports(tree)
        if item.module.split(".")[0] in EFFECT_MODULES and (item.module, module) not in TIMED
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in FILE_CALLS and module not in READERS:
                found.append(f"{module}:{node.lineno} calls {called}(): only {', '.join(READERS)} read")
            if called in CLOCK_CALLS:
                found.append(f"{module}:{node.lineno} calls {called}(): take the time as an argument")
            if called == "default_rng" and not node.args and not node.keywords:
                found.append(f"{module}:{node.lineno} draws without a seed: take it as an argument")
        if isinstance(node, ast.Attribute) and GLOBAL_CHANCE.match(ast.unparse(node)):
            found.append(f"{module}:{node.lineno} {ast.unparse(node)}: use a Generator with a seed")
    return found


BY_NAME = re.compile(r"\b(import_module|__import__)$")
UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")


def habit_violations(module: str, source: str) -> list[str]:
    """Unfinished or all-swallowing code, and imports hidden from this scan, one line each."""
    lines = enumerate(source.splitlines(), start=1)
    found = [f"{module}:{number} is marked unfinished" for number, line in lines if UNFINISHED.search(line)]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and node.id == "NotImplementedError":
            found.append(f"{module}:{node.lineno} NotImplementedError: finish it or raise a PlannerError")
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else "everything"
            if re.search(r"\b(everything|Exception|BaseException)\b", caught):
                found.append(f"{module}:{node.lineno} catches {caught}: name the error")
        if isinstance(node, ast.Call) and module != FACADE and BY_NAME.search(ast.unparse(node.func)):
            found.append(f"{module}:{node.lineno} imports by name: write an import statement")
    return found


def _text(module: str) -> str:
    return SOURCES[module].read_text(encoding="utf-8")


@pytest.mark.parametrize("module", SOURCES)
def test_module_keeps_its_layer(module: str) -> None:
    assert layer_violations(module, _text(module)) == []


@pytest.mark.parametrize("module", SOURCES)
def test_module_is_finished_and_names_its_errors(module: str) -> None:
    assert habit_violations(module, _text(module)) == []


@pytest.mark.parametrize("module", [m for m in SOURCES if (r := _row(m)) and r.layer < FIRST_LAYER_WITH_EFFECTS])
def test_module_is_pure(module: str) -> None:
    assert effect_violations(module, _text(module)) == []


def test_table_is_a_layering() -> None:
    """Every allowed import stands above the row and in no higher layer: no cycle can pass the other tests."""
    assert len(set(NAMES)) == len(NAMES)
    for position, row in enumerate(TABLE):
        assert _allowed(row) <= set(NAMES[:position]), row
        assert all(above.layer <= row.layer for above in TABLE[:position]), row


def test_kernels_are_mutually_ignorant() -> None:
    rows = [row for row in TABLE if row.module in KERNELS]
    assert len(rows) == len(KERNELS)
    assert all(not _allowed(row) & set(KERNELS) for row in rows)


@pytest.mark.parametrize(("package", "owners"), IMPORTERS.items())
def test_heavy_packages_have_few_importers(package: str, owners: tuple[str, ...]) -> None:
    assert tuple(row.module for row in TABLE if package in row.third_party.split()) == owners


def test_design_document_shows_this_table() -> None:
    document = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    for row in TABLE:
        layer = "side" if row.layer == SIDE else row.layer
        ours = row.ours if row.ours == ABOVE else ", ".join(row.ours.split())
        line = f"| {layer} | `{row.module}` | {ours or '–'} | {', '.join(row.third_party.split()) or '–'} |"
        assert line in document, f"docs/design.md lacks the row {line}"


@pytest.mark.parametrize(
    ("scan", "module", "source", "complaint"),
    [
        (layer_violations, "planner.brand_new", "", "is in no layer"),
        (layer_violations, "planner.roofline", "from planner.queueing import BatchServer", "imports planner.queueing"),
        (layer_violations, "planner.queueing.decode", "import pulp", "third party allowed here: numpy, scipy"),
        (layer_violations, "planner.llm.sizes", "from planner import plan", "imports planner:"),
        (layer_violations, "planner.llm.sizes", "from planner import roofline", "imports planner.roofline"),
        (layer_violations, "planner.llm.sizes", "from . import roofline", "relative"),
        (
            layer_violations,
            "planner.llm.sizes",
            "if TYPE_CHECKING:\n    import planner.cli.commands",
            "imports planner.cli.commands",
        ),
        (layer_violations, "planner.llm.sizes", "def f():\n    import planner.plan", "in no layer"),
        (layer_violations, "planner", "import numpy", "third party allowed here: none"),
        (layer_violations, "calibration.measure", "import torch", "inside the function"),
        (effect_violations, "planner.engine.replica", "open('a')", "calls open()"),
        (effect_violations, "planner.engine.replica", "p.read_text()", "calls read_text()"),
        (effect_violations, "planner.engine.replica", "import os", "imports os"),
        (effect_violations, "planner.traffic.trace", "from time import time", "imports time"),
        (effect_violations, "planner.engine.replica", "date.today()", "calls today()"),
        (effect_violations, "planner.engine.replica", "np.random.default_rng()", "without a seed"),
        (effect_violations, "planner.engine.replica", "np.random.normal(size=3)", "np.random.normal"),
        (habit_violations, "planner.llm.sizes", "try:\n    f()\nexcept Exception:\n    pass", "catches Exception"),
        (habit_violations, "planner.llm.sizes", "try:\n    f()\nexcept:\n    pass", "catches everything"),
        (habit_violations, "planner.llm.sizes", "raise NotImplementedError", "NotImplementedError"),
        (habit_violations, "planner.llm.sizes", "# TO" + "DO later", "unfinished"),
        (habit_violations, "planner.llm.sizes", "importlib.import_module('pulp')", "imports by name"),
    ],
)
def test_scan_catches(scan: Scan, module: str, source: str, complaint: str) -> None:
    (found,) = scan(module, source)
    assert complaint.replace(", ", " ") in found.replace(", ", " ")


@pytest.mark.parametrize(
    ("scan", "module", "source"),
    [
        (layer_violations, "planner.queueing.mixed", "from planner.queueing.types import BatchServer\nimport math"),
        (layer_violations, "planner.optimizer", "import pulp"),
        (layer_violations, "planner", "if TYPE_CHECKING:\n    from planner.fleet.planning import plan"),
        (layer_violations, "calibration.measure", "def f():\n    import torch"),
        (layer_violations, "app", "import planner\nfrom planner import charts\nimport streamlit as st"),
        (effect_violations, "hardware_db.loader", "path.read_text()"),
        (effect_violations, "planner.core.workload", "np.random.default_rng(seed).gamma(2.0)"),
        (habit_violations, "planner.llm.sizes", "try:\n    f()\nexcept (KeyError, OSError):\n    pass"),
    ],
)
def test_scan_lets_pass(scan: Scan, module: str, source: str) -> None:
    assert scan(module, source) == []


def _loaded_by(statement: str) -> set[str]:
    command = [sys.executable, "-c", f"import sys; {statement}; print(*sys.modules)"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_importing_planner_loads_nothing_heavy() -> None:
    assert not _loaded_by("import planner") & {"numpy", "scipy", "pydantic", "pulp", "yaml", "typer", "rich"}


@pytest.mark.skipif("planner.engine.replica" not in SOURCES, reason="planner.engine.replica is not there")
def test_a_step_time_never_loads_a_solver_or_a_screen() -> None:
    loaded = _loaded_by("import planner; planner.step_time")
    assert "planner.engine.replica" in loaded
    assert not loaded & {"pulp", "highspy", "scipy", "streamlit", "altair", "pandas", "torch", "typer"}


# A path that starts a word. The same letters inside a URL or a relative path pass.
HOMES = ("work", "tmp", "root", "home")
ABSOLUTE = re.compile(rf"(?:(?<![\w./:~$}}-])|file://)/(?:{'|'.join(HOMES)})/")


def test_absolute_paths_are_recognised() -> None:
    assert ABSOLUTE.search("see /" + "work/main")
    assert ABSOLUTE.search('"file:///' + 'tmp/x"')
    assert not ABSOLUTE.search("https://example.org/" + "work/paper.pdf and ../" + "work/x and ${DIR}/" + "tmp/x")


def test_no_file_names_a_place_on_one_machine() -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError:
        pytest.skip("git is not installed")
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    found = []
    for name in done.stdout.splitlines():
        path = ROOT / name
        if not path.is_file() or b"\0" in (data := path.read_bytes()):
            continue
        lines = enumerate(data.decode("utf-8").splitlines(), start=1)
        found += [f"{name}:{number}" for number, line in lines if ABSOLUTE.search(line)]
    assert found == []
