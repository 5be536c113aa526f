"""Functions on plain numbers and arrays, compiled to machine code when they are first called.

The compiled code is kept in one file of the user's cache folder (`planner.core.kept_code`), so that a machine compiles
each function once, whichever checkout asks. ``NUMBA_DISABLE_JIT=1`` runs the source.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property, partial, update_wrapper
from hashlib import sha256
from pathlib import Path
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar, overload

P = ParamSpec("P")
T = TypeVar("T")


class Compiled(Generic[P, T]):
    """A function that is compiled for the types of its arguments at its first call; numba is loaded then.

    Floats are as in Python, nothing is reordered.

    Attributes:
        source: the function, in the part of Python and numpy that numba knows. It may call other compiled ones.
        makes_arrays: whether it makes arrays or returns any. Only then are references to arrays counted, at every call
            and for every array in its arguments: that took nine tenths of the time of a loop of small functions.
    """

    def __init__(self, source: Callable[P, T], *, makes_arrays: bool = False) -> None:
        update_wrapper(self, source)  # its examples are found and run
        self.source = source
        self.makes_arrays = makes_arrays
        self._machine_code: Callable[..., Any] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call it."""
        if self._machine_code is None:
            self._machine_code = self._made(inner=False)
        result: T = self._machine_code(*args, **kwargs)
        return result

    @cached_property
    def _inner(self) -> Callable[..., Any]:
        return self._made(inner=True)

    def _made(self, *, inner: bool) -> Callable[..., Any]:
        import numba  # noqa: PLC0415 - slow to load

        from planner.core.kept_code import keep  # noqa: PLC0415 - loads numba

        source = _function(self.source)
        seen = {name: value._inner if isinstance(value, Compiled) else value for name, value in self._names.items()}
        seen["__name__"] = source.__module__
        copy = FunctionType(source.__code__, seen, source.__name__, source.__defaults__, source.__closure__)
        copy.__qualname__ = f"{source.__qualname__}_{'inner_' if inner else ''}{self.version}"
        wrap: Any = numba.njit
        made = wrap(
            no_cpython_wrapper=inner,
            no_cfunc_wrapper=True,
            forceinline=inner,
            _nrt=self.makes_arrays,  # numba's runtime: memory of arrays and the references to it
        )(copy)
        return keep(made)

    @cached_property
    def version(self) -> str:
        """Changes with the modules of all it calls, so that kept code of another version is left alone."""
        digest = sha256()
        for file in sorted(self._files):
            digest.update(_digest(file))
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


@cache
def _digest(file: str) -> bytes:
    return sha256(Path(file).read_bytes() if Path(file).exists() else b"").digest()


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
