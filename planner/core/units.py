"""Units that several layers count in."""

HOURS_PER_MONTH = 730.0
"""8760 h / 12, the month cloud price lists use."""
GIB = 2.0**30
"""Bytes of a GiB, in which drivers and engines print memory."""
