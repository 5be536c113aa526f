"""What stands over a chart."""

from __future__ import annotations

import json
from typing import Any


def title_of(spec: dict[str, Any]) -> str:
    """The title of a Vega-Lite chart in one line, as a wide page shows it; a phone breaks it in two."""
    text = spec["title"]["text"]
    if isinstance(text, str):
        return text
    phone, _, wide = text["expr"].partition(" ? ")[2].partition("] : ")
    assert " ".join(json.loads(f"{phone}]")) == json.loads(wide), text
    return str(json.loads(wide))
