"""Functions on plain numbers and arrays, compiled to machine code when they are first called.

The compiled code is kept beside the module, or where that may not be written in the user's cache folder
(``NUMBA_CACHE_DIR`` moves it), so that a machine compiles each function once. ``NUMBA_DISABLE_JIT=1`` runs the source.
"""

from __future__ import annotations

from collections.abc import Callable
from pickle import PickleError
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

DAMAGED = (
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    OSError,
    PickleError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What reading kept code raises when a file is damaged, or keeping it when there is no folder that may be written."""


class Compiled(Generic[P, T]):
    """A function that is compiled for the types of its arguments at its first call; numba is loaded then.

    Floats are as in Python, nothing is reordered.

    Attributes:
        source: the function, in the part of Python and numpy that numba knows. It may call other compiled ones of its
            own module only: kept code is not made again when another module changes.
    """

    def __init__(self, source: Callable[P, T]) -> None:
        self.source = source
        self._machine_code: Callable[..., Any] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call it; with what was kept of it, unless that is damaged."""
        if self._machine_code is None:
            try:
                code = self.machine_code(kept=True)
                result: T = code(*args, **kwargs)
            except DAMAGED:
                code = self.machine_code(kept=False)
                result = code(*args, **kwargs)
            self._machine_code = code
            return result
        again: T = self._machine_code(*args, **kwargs)
        return again

    def machine_code(self, *, kept: bool) -> Callable[..., Any]:
        """The function as numba makes it, with that of those it calls; `kept`: on disk."""
        import numba  # noqa: PLC0415 - slow to load

        source = self.source
        assert isinstance(source, FunctionType)
        used = ("__name__", *source.__code__.co_names)
        names = {name: source.__globals__[name] for name in used if name in source.__globals__}
        seen = {
            name: value.machine_code(kept=kept) if isinstance(value, Compiled) else value
            for name, value in names.items()
        }
        copy = FunctionType(source.__code__, seen, source.__name__, source.__defaults__, source.__closure__)
        made: Callable[..., Any] = numba.njit(cache=kept)(copy)
        return made


def compiled(source: Callable[P, T]) -> Compiled[P, T]:
    """The function, compiled when it is first called.

    >>> @compiled
    ... def twice(x):
    ...     return 2.0 * x
    >>> twice.source(3.0)
    6.0
    """
    return Compiled(source)
