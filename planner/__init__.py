"""Capacity and cost planner for serving large language models.

>>> import planner
>>> request = planner.load_scenario("chat-llama-70b")
>>> request.llm.id
'llama-3.3-70b-instruct'

Names are imported on first use, so ``import planner`` is instant and a step time never loads a solver.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil

__version__ = "0.1.0"

_HOME = {
    alias.name: f"{__name__}.{node.module}"
    for node in ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"").body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
"""Package of each name, as the stub tells type checkers."""
__all__ = sorted(_HOME)  # noqa: PLE0605 - read from the stub


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'planner' has no attribute {name!r}; it offers {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOME[name]), name)  # noqa: TID251 - the facade, which has the names for type checkers
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
