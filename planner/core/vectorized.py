"""A formula written once, for one element: compiled code calls it as it stands, Python calls it with arrays.

The formula is a function of a record of constants, a table and numbers. The constants are the numbers of frozen
dataclasses by name, those of their properties included, so that what can be worked out once is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cached_property
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast, overload

from planner.core.arrays import Constants, FloatArray
from planner.core.compiled import Compiled

if TYPE_CHECKING:
    import numpy as np

Records = Any
_formula: Any = None
"""Stands for the formula in the loops below."""


def _over_1(constants: Records, table: FloatArray, numbers: FloatArray, out: FloatArray) -> None:
    for i in range(out.size):
        out[i] = _formula(constants[min(i, constants.size - 1)], table, numbers[0, i])


def _over_2(constants: Records, table: FloatArray, numbers: FloatArray, out: FloatArray) -> None:
    for i in range(out.size):
        out[i] = _formula(constants[min(i, constants.size - 1)], table, numbers[0, i], numbers[1, i])


def _over_3(constants: Records, table: FloatArray, numbers: FloatArray, out: FloatArray) -> None:
    for i in range(out.size):
        row = constants[min(i, constants.size - 1)]
        out[i] = _formula(row, table, numbers[0, i], numbers[1, i], numbers[2, i])


def _over_4(constants: Records, table: FloatArray, numbers: FloatArray, out: FloatArray) -> None:
    for i in range(out.size):
        row = constants[min(i, constants.size - 1)]
        out[i] = _formula(row, table, numbers[0, i], numbers[1, i], numbers[2, i], numbers[3, i])


_LOOPS = (_over_1, _over_2, _over_3, _over_4)


class Vectorized(Compiled[..., Any]):
    """A compiled formula that Python calls with its numbers, floats or arrays that broadcast, and its records.

    Attributes:
        kinds: dataclasses whose numbers are its constants.
        numbers: how many it takes beside them.
    """

    def __init__(self, source: Callable[..., float], kinds: tuple[type, ...]) -> None:
        super().__init__(source)
        self.kinds = kinds
        self.numbers = cast(FunctionType, source).__code__.co_argcount - 2
        loop = cast(FunctionType, _LOOPS[self.numbers - 1])
        over = FunctionType(loop.__code__, {"_formula": self, "__name__": source.__module__}, source.__name__)
        over.__qualname__ = f"{source.__qualname__}{loop.__name__}"
        self._over: Compiled[..., None] = Compiled(over)

    @overload  # in the source of compiled code
    def __call__(self, constants: Constants, table: FloatArray, /, *numbers: float) -> float: ...

    @overload
    def __call__(self, number: FloatArray | float, /, *args: object) -> FloatArray: ...

    def __call__(self, *args: Any) -> FloatArray | float:
        """Numbers in the order of the formula and records in that of `kinds`; the one with a `table` brings it along.

        Numbers of records may be arrays too, of one value for each step; numbers are then of shape (steps,).
        """
        import numpy as np  # noqa: PLC0415 - `planner.core` loads without it

        records = [arg for arg in args if is_dataclass(arg)]
        numbers = [np.asarray(arg, dtype=np.float64) for arg in args if not is_dataclass(arg)]
        constants = self.constants(*records)
        table = next((record.table for record in records if hasattr(record, "table")), np.zeros((3, 3)))
        shape = np.broadcast_shapes(
            *(number.shape for number in numbers), constants.shape if constants.size > 1 else ()
        )
        each = np.empty((len(numbers), *shape))
        for place, number in enumerate(numbers):
            each[place] = number
        each = each.reshape(len(numbers), -1)
        out = np.empty(each.shape[1])
        self._over(constants, table, each, out)
        return out.reshape(shape) if shape else out[0]

    def constants(self, *records: object) -> np.recarray[Any, Any]:
        """Records of `kinds` as one record of constants, or one a step where a number is an array."""
        import numpy as np  # noqa: PLC0415 - `planner.core` loads without it

        values = [
            getattr(record, name) for record, names in zip(records, self._names_of, strict=True) for name in names
        ]
        size = max((np.size(value) for value in values), default=1)
        constants = np.zeros(size, dtype=self.record).view(np.recarray)
        for name, value in zip(self.record.names or (), values, strict=False):
            constants[name] = value
        return constants

    @cached_property
    def record(self) -> np.dtype[Any]:
        """Of its constants."""
        import numpy as np  # noqa: PLC0415 - `planner.core` loads without it

        names = [name for names in self._names_of for name in names] or ["none"]
        return np.dtype((np.record, [(name, np.float64) for name in names]))

    @cached_property
    def _names_of(self) -> list[tuple[str, ...]]:
        return [_numbers_of(kind) for kind in self.kinds]


def vectorized(*kinds: type) -> Callable[[Callable[..., float]], Vectorized]:
    """The formula, compiled for compiled code and for arrays when it is first called.

    Args:
        kinds: frozen dataclasses whose numbers are its constants. The formula is a function of a record of them, a
            table, and one to four numbers.

    >>> from dataclasses import make_dataclass
    >>> Line = make_dataclass("Line", [("slope", "float")], frozen=True)
    >>> @vectorized(Line)
    ... def on_line(line, table, x):
    ...     return line.slope * x
    >>> on_line([1.0, 2.0], Line(3.0)).tolist()
    [3.0, 6.0]
    """
    return lambda source: Vectorized(source, kinds)


def _numbers_of(kind: type) -> tuple[str, ...]:
    """Fields and properties of a dataclass that are annotated as numbers."""
    is_number = {"float", "int", "bool", "float | FloatArray", "bool | BoolArray"}.__contains__
    parts = {name: value for base in reversed(kind.__mro__) for name, value in vars(base).items()}
    derived = {name: value.fget.__annotations__ for name, value in parts.items() if isinstance(value, property)}
    own = [field.name for field in fields(kind) if is_number(str(field.type))]
    return (*own, *(name for name, hints in derived.items() if is_number(hints.get("return"))))
