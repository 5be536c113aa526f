"""Every notebook runs from top to bottom with nothing before it, draws its charts, and is committed without outputs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.places import DOCS, ROOT

os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")  # otherwise jupyter_core warns that its folders will move
nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
jupyter_client = pytest.importorskip("jupyter_client")

NOTEBOOKS = sorted((DOCS / "tutorial" / "notebooks").glob("*.ipynb"))
CHARTS = {"plan-a-chat-service": 4, "calibrate-with-measurements": 1, "sweep-and-compare": 4}
DRAWS = "vegaEmbed("
"""What the page of an Altair chart calls to draw it."""


def _code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def test_there_are_notebooks() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(CHARTS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_valid_and_committed_without_outputs(path: Path) -> None:
    nbformat.validate(json.loads(path.read_text(encoding="utf-8")))
    assert not [cell for cell in _code(_read(path)) if cell.outputs or cell.execution_count is not None]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One for all, since starting and importing takes longer than most of them."""
    own = {"PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path_factory.mktemp("ipython"))}
    manager = jupyter_client.KernelManager(kernel_name="python3")
    manager.start_kernel(env={**os.environ, **own, "PYTHONWARNINGS": "ignore"})  # of the kernel's own machinery
    yield manager
    manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_draws(path: Path, kernel: Any, tmp_path: Path) -> None:
    """In an empty folder and without a name: a notebook that was downloaded by itself has nothing beside it."""
    notebook = _read(path)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(f"%reset -f\n%cd -q {tmp_path}"))
    client = nbclient.NotebookClient(notebook, km=kernel, timeout=120)
    client.execute()
    client.kc.stop_channels()
    outputs = [output for cell in _code(notebook) for output in cell.outputs]
    drawn = [output for output in outputs if DRAWS in output.get("data", {}).get("text/html", "")]
    assert len(drawn) == CHARTS[path.stem]
    assert not [output for output in outputs if output.get("name") == "stderr"]
