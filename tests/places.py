"""Where things lie in the checkout."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
DOCS = ROOT / "docs"
REFERENCE = TESTS / "reference"
"""Published values, each with its citation."""
DATA = TESTS / "data"
LP = TESTS / "lp"
"""Golden programs, one for each constraint."""
SHARED = ROOT.parent / "shared"
"""Tables and measurements that lie beside some checkouts."""
