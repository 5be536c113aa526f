"""Functions on plain numbers and arrays, compiled to machine code when they are first called.

The compiled code is kept beside the module, or where that may not be written in the user's cache folder
(``NUMBA_CACHE_DIR`` moves it), so that a machine compiles each function once. ``NUMBA_DISABLE_JIT=1`` runs the source.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from pickle import PickleError
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar, overload

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
"""Exceptions of reading kept code when a file is damaged, or keeping it when there is no folder that may be written."""


class Compiled(Generic[P, T]):
    """A function that is compiled for the types of its arguments at its first call; numba is loaded then.

    Floats are as in Python, nothing is reordered.

    Attributes:
        source: the function, in the part of Python and numpy that numba knows. It may call other compiled ones.
        makes_arrays: whether it makes arrays or returns any. Only then are references to arrays counted, at every call
            and for every array in its arguments: that took nine tenths of the time of a loop of small functions.
    """

    def __init__(self, source: Callable[P, T], *, makes_arrays: bool = False) -> None:
        self.source = source
        self.makes_arrays = makes_arrays
        self._machine_code: Callable[..., Any] | None = None
        self._made: dict[tuple[bool, bool], Callable[..., Any]] = {}

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

    def machine_code(self, *, kept: bool, inner: bool = False) -> Callable[..., Any]:
        """The function as numba makes it; `kept`: on disk, `inner`: for other compiled functions only."""
        if (kept, inner) not in self._made:
            import numba  # noqa: PLC0415 - slow to load

            source = _function(self.source)
            seen = {
                name: value.machine_code(kept=kept, inner=True) if isinstance(value, Compiled) else value
                for name, value in self._names.items()
            }
            seen["__name__"] = source.__module__
            copy = FunctionType(source.__code__, seen, source.__name__, source.__defaults__, source.__closure__)
            copy.__qualname__ = f"{source.__qualname__}_{'inner_' if inner else ''}{self.version}"
            wrap: Any = numba.njit
            made = wrap(
                cache=kept,
                no_cpython_wrapper=inner,
                no_cfunc_wrapper=True,
                forceinline=inner,
                _nrt=self.makes_arrays,  # numba's runtime: memory of arrays and the references to it
            )
            self._made[kept, inner] = made(copy)
        return self._made[kept, inner]

    @cached_property
    def version(self) -> str:
        """Changes with the modules of all it calls, so that kept code of another version is left alone."""
        digest = sha256()
        for file in sorted(self._files):
            digest.update(Path(file).read_bytes() if Path(file).exists() else b"")
        return digest.hexdigest()[:16]

    @property
    def _files(self) -> set[str]:
        called = [value._files for value in self._names.values() if isinstance(value, Compiled)]
        return {__file__, _function(self.source).__code__.co_filename}.union(*called)

    @property
    def _names(self) -> dict[str, Any]:
        """Names of its module that the function uses."""
        source = _function(self.source)
        return {name: source.__globals__[name] for name in source.__code__.co_names if name in source.__globals__}


def _function(source: Callable[..., Any]) -> FunctionType:
    assert isinstance(source, FunctionType)
    return source


@overload
def compiled(source: Callable[P, T]) -> Compiled[P, T]: ...


@overload
def compiled(*, makes_arrays: bool) -> Callable[[Callable[P, T]], Compiled[P, T]]: ...


def compiled(
    source: Callable[P, T] | None = None, *, makes_arrays: bool = False
) -> Compiled[P, T] | Callable[[Callable[P, T]], Compiled[P, T]]:
    """The function, compiled when it is first called.

    Args:
        source: the function.
        makes_arrays: whether it makes arrays or returns any; one that does and does not say so fails when compiled.

    >>> @compiled
    ... def twice(x):
    ...     return 2.0 * x
    >>> twice.source(3.0)
    6.0
    """
    if source is None:
        return partial(Compiled, makes_arrays=makes_arrays)
    return Compiled(source)
