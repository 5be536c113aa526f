"""The machine at hand: torch, its GPUs, which SKU they are, and their clocks and temperature while measuring."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from hardware_db import GpuSku
from planner.core import InputError

MEMORY_TOLERANCE = 0.1
"""A driver reports up to 8 % less than the label (reserve, ECC, GB against GiB)."""
OPTIONAL_ID_WORD = re.compile(r"sxm|pcie|nvl\d*|server|blackwell|\d+gb")
"""Words of a SKU id that a driver's name may leave out; memory and processors then decide."""
STATE_QUERY = (
    "timestamp,clocks.sm,clocks.mem,temperature.gpu,power.draw,pcie.link.gen.current,pcie.link.width.current,pstate"
)
STATE_INTERVAL_MS = 2000
"""Time between two lines of the log of clocks, temperature and power [ms]."""


@dataclass(frozen=True)
class Device:
    """The device to measure and the software on it. `kind` is ``cuda`` or ``cpu``; sizes in bytes, 0 = unknown."""

    kind: str
    name: str
    sm_count: int
    memory_bytes: int
    l2_bytes: int
    gpus: int
    uuid: str
    versions: Mapping[str, str]

    @property
    def is_amd(self) -> bool:
        """True if torch drives it through ROCm, under the names of CUDA."""
        return bool(self.versions.get("hip"))

    @property
    def stack(self) -> str:
        """Software in one line, e.g. ``torch 2.10.0, cuda 13.0, driver 580.1``."""
        named = ", ".join(f"{name} {version}" for name, version in self.versions.items() if version)
        return f"CPU, for tests only: {named}" if self.kind == "cpu" else named


def load_torch() -> Any:  # noqa: ANN401 (torch is optional)
    """The torch module. Raises InputError with the command to install it where it is missing."""
    try:
        import torch
    except ImportError:
        fix = "pip install 'llm-capacity-planner[calibration]'"
        raise InputError("torch", "(not installed)", "measuring needs PyTorch", fix) from None
    return torch


def read_device(kind: str) -> Device:
    """The device to measure; `kind` ``auto`` takes a GPU where there is one.

    Raises:
        InputError: `kind` is unknown, ``cuda`` without a usable GPU, or ``auto`` without one.
    """
    torch = load_torch()
    if kind not in ("auto", "cuda", "cpu"):
        raise InputError("device", kind, "is neither cuda nor cpu", "give one of the two")
    if kind == "cpu":
        return Device("cpu", platform.processor() or platform.machine(), 0, 0, 0, 0, "", {"torch": torch.__version__})
    if not torch.cuda.is_available():
        fix = "run on a machine with a GPU and its driver; --device cpu only tries the program"
        raise InputError("device", kind, "torch sees no GPU", fix)
    properties = torch.cuda.get_device_properties(0)
    uuid = str(getattr(properties, "uuid", ""))
    return Device(
        kind="cuda",
        name=properties.name,
        sm_count=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        l2_bytes=int(getattr(properties, "L2_cache_size", 0)),
        gpus=torch.cuda.device_count(),
        uuid=f"GPU-{uuid}" if uuid and not uuid.startswith("GPU-") else uuid,
        versions=_versions(torch, uuid),
    )


def _versions(torch: Any, uuid: str) -> dict[str, str]:  # noqa: ANN401
    cuda, hip = torch.version.cuda or "", getattr(torch.version, "hip", None) or ""
    return {
        "torch": torch.__version__,
        "cuda": cuda,
        "hip": hip,
        "triton": _version("triton"),
        "flashinfer": _version("flashinfer-python"),
        "driver": _amd_driver() if hip else _query_smi("driver_version", f"GPU-{uuid}").get("driver_version", ""),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def match_sku(name: str, sm_count: int, memory_bytes: int, skus: Mapping[str, GpuSku]) -> str | None:
    """Id of the one SKU that fits a driver's device name, its processors and its memory; None where not exactly one.

    Every word of the id must be in the name, but for form factor and size, which drivers leave out; memory within 10 %
    and the number of processors decide then. The id with most words in the name wins.
    """
    words = set(re.findall(r"[a-z0-9]+", re.sub(r"sxm\d", "sxm", name.lower())))
    scores: dict[str, int] = {}
    for sku in skus.values():
        own = sku.id.replace(".", "-").split("-")
        needed = {word for word in own if not OPTIONAL_ID_WORD.fullmatch(word)}
        capacity = sku.hbm_capacity_bytes.value
        right_size = abs(memory_bytes - capacity) <= MEMORY_TOLERANCE * capacity
        if needed <= words and right_size and sku.sm_count == sm_count:
            scores[sku.id] = len(words & set(own))
    best = [sku for sku, score in scores.items() if score == max(scores.values())]
    return best[0] if len(best) == 1 else None


def chosen_sku(device: Device, given: str, skus: Mapping[str, GpuSku]) -> GpuSku:
    """The SKU measured: as given, else recognised.

    Raises:
        InputError: none given and not recognised, or the given one is unknown.
    """
    if given and given in skus:
        return skus[given]
    if given:
        fix = "use an id that `planner skus` lists, or add a SKU file (hardware_db/README.md)"
        raise InputError("sku", given, "is not in the hardware database", fix)
    sku_id = None if device.kind == "cpu" else match_sku(device.name, device.sm_count, device.memory_bytes, skus)
    if sku_id is None:
        seen = f"{device.name}, {device.sm_count} processors, {device.memory_bytes / 2**30:.1f} GiB"
        fix = "give --sku with an id that `planner skus` lists, or add a SKU file (hardware_db/README.md)"
        raise InputError("sku", "(not given)", f"no single SKU matches this device ({seen})", fix)
    return skus[sku_id]


def _query_smi(fields: str, uuid: str) -> dict[str, str]:
    """Fields of nvidia-smi of one GPU; empty where there is no nvidia-smi or it fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    command = [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    command += ["-i", uuid] if len(uuid) > len("GPU-") else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return parse_state(fields, done.stdout) if done.returncode == 0 else {}


def parse_state(fields: str, line: str) -> dict[str, str]:
    """One line of nvidia-smi's CSV by field; what it does not know is left out.

    >>> parse_state("clocks.sm,power.draw,pstate", "1980, [N/A], P0")
    {'clocks.sm': '1980', 'pstate': 'P0'}
    """
    cells = [cell.strip() for cell in line.splitlines()[0].split(",")] if line.strip() else []
    named = zip(fields.split(","), cells, strict=False)
    return {name: cell for name, cell in named if cell and "N/A" not in cell and "Not Supported" not in cell}


def gpu_state(device: Device) -> dict[str, str]:
    """Clocks [MHz], temperature [C], power [W] and PCIe link right now; empty on a CPU."""
    if device.kind == "cpu":
        return {}
    return _query_rocm_smi() if device.is_amd else _query_smi(STATE_QUERY, device.uuid)


AMD_DRIVER = Path("/sys/module/amdgpu/version")
"""Where the kernel says which amdgpu it has (ROCm's documentation, "Verify the driver")."""
ROCM_SMI = ("--showclocks", "--showtemp", "--showpower", "--json")
"""Options of rocm-smi (rocm.docs.amd.com/projects/rocm_smi_lib/en/latest/python_usage.html, read 2026-11-24)."""


def _amd_driver() -> str:
    try:
        return AMD_DRIVER.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _query_rocm_smi() -> dict[str, str]:
    """Readings of rocm-smi for the first GPU; empty where there is none or it fails."""
    program = shutil.which("rocm-smi")
    if program is None:
        return {}
    try:
        done = subprocess.run([program, *ROCM_SMI], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return parse_rocm_state(done.stdout) if done.returncode == 0 else {}


def parse_rocm_state(text: str) -> dict[str, str]:
    """The readings of the first card in rocm-smi's JSON; what it does not know is left out.

    >>> parse_rocm_state('{"card0": {"Temperature (Sensor junction) (C)": "41.0", "sclk clock level:": "N/A"}}')
    {'Temperature (Sensor junction) (C)': '41.0'}
    """
    try:
        cards: dict[str, dict[str, str]] = json.loads(text)
    except ValueError:
        return {}
    first = next((card for name, card in cards.items() if name.startswith("card")), {})
    return {str(name).strip(" :"): str(value) for name, value in first.items() if "N/A" not in str(value)}


class StateLog:
    """Writes the GPU's clocks, temperature and power to a file every two seconds, while in a ``with`` block.

    Of an AMD GPU only the state before and after is kept (`gpu_state`): rocm-smi has no loop of its own.
    """

    def __init__(self, device: Device, path: Path) -> None:
        self._device = device
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> StateLog:
        program = shutil.which("nvidia-smi")
        if self._device.kind != "cpu" and not self._device.is_amd and program is not None:
            command = [program, f"--query-gpu={STATE_QUERY}", "--format=csv", "-lms", str(STATE_INTERVAL_MS)]
            command += ["-i", self._device.uuid] if self._device.uuid else []
            with self._path.open("ab") as log:
                self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=10)
