"""Names for arrays in signatures."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_core_loads_no_numpy() -> None:
    command = [sys.executable, "-c", "import sys, planner.core; print(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "numpy" not in done.stdout.split()
