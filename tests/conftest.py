"""What every test may lean on: the checkout and the reference tables beside it."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]
MAIN = sys.modules["__main__"]
collect_ignore_glob = ["studies/[!_t]*.py"]
"""Long evidence runs are started by hand; tests of theirs lie beside them."""
gc.disable()  # a sixth of the time of collecting, until `pytest_collection_finish`

# Derandomised so that a run repeats; `pytest --hypothesis-profile=explore` draws fresh examples.
# No deadline: a slow machine is not a failing property.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("repeatable")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Iterator[None]:
    """Of the modules of the tests only those with examples are searched for them: a search walks the whole module."""
    found = yield
    has_examples = ">>> " in file_path.read_text(encoding="utf-8") if file_path.suffix == ".py" else False
    return [one for one in found if has_examples or not isinstance(one, DoctestModule)]


def pytest_collection_finish() -> None:
    """What was collected stays to the end: the garbage collector need not go through it, now or later.

    It looks at new objects by ten thousands: by 700, as Python sets it, it takes a twentieth of the time of all tests.
    """
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """Reference tables, traces and measurements that lie beside some checkouts; skips where they are absent."""
    folder = ROOT.parent / "shared"
    if not (folder / "reference").is_dir():
        pytest.skip(f"no reference tables beside the checkout ({folder.name}/reference)")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _components_are_looked_for_once() -> None:
    """Every new AppTest reads the metadata of all installed packages for components, which stay as they are."""
    if "streamlit" in sys.modules:
        with contextlib.suppress(ImportError, AttributeError):  # other versions look elsewhere, or not at all
            from streamlit.components.v2 import manifest_scanner

            manifest_scanner.scan_component_manifests = functools.cache(manifest_scanner.scan_component_manifests)


@pytest.fixture(scope="session", autouse=True)
def _pages_are_waited_for_asleep() -> None:
    """AppTest looks a thousand times a second whether the page is there, which slows the thread that draws it."""
    if "streamlit" in sys.modules:
        from streamlit.testing.v1 import local_script_runner

        look = local_script_runner.require_widgets_deltas

        def wait(runner: local_script_runner.LocalScriptRunner, timeout: float = 3.0) -> None:
            if runner._script_thread is not None:
                runner._script_thread.join(timeout)
            look(runner, timeout if runner.script_stopped() else 0.0)

        local_script_runner.require_widgets_deltas = wait


@pytest.fixture(scope="session", autouse=True)
def _scripts_are_compiled_once() -> None:
    """Every run of an AppTest compiles its script anew, which stays as it is."""
    if "streamlit" in sys.modules:
        from streamlit.runtime.scriptrunner.script_cache import ScriptCache

        compiled, made = ScriptCache.get_bytecode, dict[tuple[str, str], Any]()

        def compile_once(self: ScriptCache, script_path: str) -> Any:
            key = (script_path, Path(script_path).read_text(encoding="utf-8"))
            if key not in made:
                made[key] = compiled(self, script_path)
            return made[key]

        ScriptCache.get_bytecode = compile_once  # type: ignore[method-assign]


@pytest.fixture(scope="session", autouse=True)
def _charts_are_validated_once() -> None:
    """As a whole, when they are turned into Vega-Lite, and not every part of them before that as well.

    What a page draws again is valid still, and which class stands for which part of the schema never changes.
    """
    if "altair" in sys.modules:
        from altair.utils import schemapi

        schemapi.disable_debug_mode()
        validate, seen = schemapi.SchemaBase.validate.__func__, set[tuple[type, str]]()
        fill, tables = schemapi._FromDict.__init__, dict[tuple[type, ...], Any]()

        def validate_once(cls: type, instance: dict[str, Any], schema: dict[str, Any] | None = None) -> None:
            shape = {name: part for name, part in instance.items() if name != "datasets"}  # rows of anything
            key = (cls, json.dumps(shape, default=repr))
            if schema is not None or key not in seen:
                validate(cls, instance, schema)
                seen.add(key)

        def fill_once(self: schemapi._FromDict, classes: Iterable[type]) -> None:
            found = tuple(classes)
            if found not in tables:
                fill(self, found)
                tables[found] = self.class_dict
            self.class_dict = tables[found]

        schemapi.SchemaBase.validate = classmethod(validate_once)
        schemapi._FromDict.__init__ = fill_once


@pytest.fixture(scope="session", autouse=True)
def _commands_are_built_once() -> None:
    """Every call of typer's runner turns all functions of the command line into commands, which keep no state."""
    if "typer" in sys.modules:
        from typer import Typer, testing

        build, built = testing._get_command, dict[tuple[object, ...], Any]()  # type: ignore[attr-defined]

        def build_once(app: Typer) -> Any:
            key = (app, *(one.callback for one in app.registered_commands))
            if key not in built:
                built[key] = build(app)
            return built[key]

        testing._get_command = build_once  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _main_module_is_kept() -> Iterator[None]:
    """AppTest puts its script in the place of ``__main__``, which processes that are spawned later would run again."""
    sys.modules["__main__"] = MAIN
    yield
    sys.modules["__main__"] = MAIN
