"""What hosted APIs ask per million tokens: a packaged table with the page and the day each price was read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import date
from functools import cache

from pydantic import Field, ValidationError

from planner.core import Frozen, InputError, from_validation_error, preset_rows

_VARIANT_SUFFIXES = re.compile(r"-(instruct|chat|it|thinking|base|hf|\d{4}|v0\.\d)(?=-|$)")
"""Suffixes of a model's id that tell apart members of a family that cost the same to serve."""


class ApiPrice(Frozen):
    """Price of a hosted API for a model [USD per million tokens]."""

    llm: str = Field(min_length=1, description="id of a model of the family")
    provider: str = Field(min_length=1, description="who serves it")
    served_as: str = Field(min_length=1, description="its name there")
    usd_per_million_input_tokens: float = Field(ge=0, allow_inf_nan=False)
    usd_per_million_cached_tokens: float = Field(
        ge=0, allow_inf_nan=False, description="input found in a cache; as other input where no price is given"
    )
    usd_per_million_output_tokens: float = Field(ge=0, allow_inf_nan=False)
    source_url: str = Field(min_length=8, description="where it was read")
    read_on: date = Field(description="when it was read")
    retired_on: date | None = Field(default=None, description="since when this model is not served there any more")
    note: str = Field(default="", description="how it was read")


def llm_family(llm_id: str) -> str:
    """The family of a model by its id: what is served under one price.

    >>> llm_family("llama-3.3-70b-instruct"), llm_family("Qwen3-8B"), llm_family("mixtral-8x7b-v0.1")
    ('llama-3.3-70b', 'qwen3-8b', 'mixtral-8x7b')
    """
    return _VARIANT_SUFFIXES.sub("", llm_id.lower().rsplit("/", maxsplit=1)[-1])


@cache
def listed_api_prices() -> tuple[ApiPrice, ...]:
    """The packaged table, in its order. Raises InputError where a row has no source, date or price."""
    return tuple(_price_of_row(number, row) for number, row in enumerate(preset_rows("api_prices.csv"), start=2))


def _price_of_row(line: int, row: dict[str, str]) -> ApiPrice:
    given = {name: value for name, value in row.items() if value}
    given.setdefault("usd_per_million_cached_tokens", given.get("usd_per_million_input_tokens", ""))
    try:
        return ApiPrice.model_validate(given)
    except ValidationError as error:
        raise from_validation_error(error, f"api_prices.csv line {line}") from None


def api_prices_of(llm_id: str, day: date, prices: Iterable[ApiPrice] | None = None) -> tuple[ApiPrice, ...]:
    """The prices of a model's family where it is served on a day; of the packaged table unless others are given.

    >>> [len(api_prices_of("deepseek-v4-flash", date(2026, month, 1))) for month in (9, 10)]
    [1, 0]
    """
    listed = listed_api_prices() if prices is None else prices
    served = (price for price in listed if price.retired_on is None or day < price.retired_on)
    return tuple(price for price in served if llm_family(price.llm) == llm_family(llm_id))


def own_price(llm_id: str, text: str, day: date) -> ApiPrice:
    """A price given by hand: ``input/output`` or ``input/cached/output`` [USD per million tokens].

    Raises InputError for anything else.

    >>> own_price("llama-3.1-8b", "0.2/0.1/0.6", date(2026, 11, 22)).usd_per_million_cached_tokens
    0.1
    """
    try:
        numbers = [float(part) for part in text.split("/")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3) or not all(math.isfinite(usd) and usd >= 0.0 for usd in numbers) or not any(numbers):
        bound = "must be two or three prices >= 0 with slashes between"
        raise InputError("--api-price", text, bound, "write INPUT/OUTPUT or INPUT/CACHED/OUTPUT, e.g. 0.59/0.79")
    fresh, cached, written = numbers if len(numbers) == 3 else (numbers[0], numbers[0], numbers[1])
    return ApiPrice(
        llm=llm_id,
        provider="own price",
        served_as=llm_id,
        usd_per_million_input_tokens=fresh,
        usd_per_million_cached_tokens=cached,
        usd_per_million_output_tokens=written,
        source_url="given by hand",
        read_on=day,
    )
