"""Latency metrics that targets are set for and requests are measured by, and units that several layers count in."""

from __future__ import annotations

from enum import StrEnum


class Metric(StrEnum):
    """Latency metrics of one request, and of one gap between tokens.

    TTFT: arrival to first token. TPOT: (E2E - TTFT) / (output tokens - 1). E2E: arrival to last token. ITL: one gap
    between two tokens of a request; its percentiles are over all gaps of all requests.
    """

    TTFT = "ttft"
    TPOT = "tpot"
    E2E = "e2e"
    ITL = "itl"


HOURS_PER_MONTH = 730.0
"""8760 h / 12, the month cloud price lists use."""
GIB = 2.0**30
"""Bytes of a GiB, in which drivers and engines print memory."""
