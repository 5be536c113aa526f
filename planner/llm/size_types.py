"""Whole numbers that are sizes: what every record of shapes is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

MAX_SIZE = 2**31 - 1
"""Largest size, a signed 32-bit index; published shapes stay below 2**25 (context of Llama 4 Scout: 10 485 760)."""

Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
Count = Annotated[int, Field(ge=0, le=MAX_SIZE)]
