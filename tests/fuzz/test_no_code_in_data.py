"""No source runs what it reads: no eval, exec, pickle or shell anywhere, and YAML by a safe loader only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.fuzz.guard import ROOT
from tests.repository.layers import nodes_of

_NO_NAMES = {"eval", "exec", "compile", "__import__"}
_NO_MODULES = {"pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle", "jsonpickle", "code", "codeop", "runpy"}
_NO_CALLS = {
    *("yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "yaml.unsafe_load_all", "yaml.full_load_all"),
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "tempfile.mktemp"),
    *("torch.load", "np.load", "numpy.load", "pd.read_pickle", "pandas.read_pickle", "pd.eval"),
}
NAMED = {"planner/core/kept_code.py": ["pickle"]}
"""Machine code that this machine made, checked by digest and from a folder of our own: no data comes from there."""
SOURCES = [ROOT / "app.py"]
for _place in ("planner", "hardware_db", "calibration"):
    SOURCES += sorted((ROOT / _place).rglob("*.py"))


def _dotted_name(node: ast.expr) -> str:
    """A name with its attributes, such as ``yaml.load``; empty for anything else that is called."""
    if isinstance(node, ast.Attribute):
        holder = _dotted_name(node.value)
        return f"{holder}.{node.attr}" if holder else ""
    return node.id if isinstance(node, ast.Name) else ""


def _forbidden(source: str) -> Iterator[str]:
    for node in nodes_of(source):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (name for name in names if name.split(".")[0] in _NO_MODULES)
        elif isinstance(node, ast.Call):
            called = _dotted_name(node.func)
            if called in _NO_NAMES or called in _NO_CALLS:
                yield called
            if called == "yaml.load" and [ast.unparse(word.value) for word in node.keywords] != ["_PlainLoader"]:
                yield called
            if any(
                word.arg in ("shell", "allow_pickle") and ast.unparse(word.value) != "False" for word in node.keywords
            ):
                yield ast.unparse(node)


def test_the_scan_finds_what_it_looks_for() -> None:
    code = "import pickle\nfrom marshal import loads\neval('1')\nyaml.load(x)\nyaml.load(x, Loader=yaml.Loader)\n"
    code += "subprocess.run(x, shell=True)\nre.compile(x)\nmodel.eval()\nyaml.safe_load(x)\n"
    assert len(list(_forbidden(code))) == 6


def test_no_source_runs_what_it_reads() -> None:
    """No eval, exec, pickle or shell anywhere, and YAML by a safe loader only."""
    found = {str(path.relative_to(ROOT)): list(_forbidden(path.read_text("utf-8"))) for path in SOURCES}
    assert {path: names for path, names in found.items() if names} == NAMED
    assert len(SOURCES) > 100
