"""PyTorch on the CPU, for the tests of what is measured; they skip where it is not installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calibration.bench import Workbench
from calibration.measure import Effort
from calibration.records import open_folder
from calibration.session import Session
from hardware_db import load_hardware


def torch_or_skip() -> Any:
    torch = pytest.importorskip("torch", reason="measuring needs the optional extra 'calibration'")
    torch.set_num_threads(1)  # other tests run beside these, and threads that wait for a core wait long
    return torch


def cpu_session(path: Path, sku: str = "h200-sxm", resume: bool = False) -> Session:
    """A session that measures as little as it can."""
    effort = Effort(warmups=1, replays=3, replay_s=1e-5, total_s=1e-3, calls=4)
    folder = open_folder(path, {}, resume)
    return Session(Workbench(torch_or_skip(), "cpu"), load_hardware().skus[sku], effort, folder)
