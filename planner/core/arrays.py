"""Names for numpy arrays in signatures: one element type each, any shape (the docstring says which); and
for a record of constants by name.

For type checkers only. Nothing needs their values when the program runs, so that `planner.core` loads without numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]
    BoolArray = NDArray[np.bool_]

    class Constants:
        """A record of constants by name."""

        def __getattr__(self, name: str) -> float: ...
else:
    FloatArray = IntArray = BoolArray = Constants = object
