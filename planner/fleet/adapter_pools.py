"""Services whose models are low-rank adapters of one base model, as one service per base model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.engine import LoraAdapters
from planner.fleet.slices import require_unique
from planner.traffic import Service
from planner.workload import MAX_SCV, ArrivalProcess, RateDrift, RecordedArrivals, RequestClass, Workload

LONG_RUN_GAPS = 1e12
"""A window [mean gaps] beyond every measured one, where the index of dispersion is that of the long run."""


@dataclass(frozen=True)
class AdapterPool:
    """Services that share the weights of one base model.

    Attributes:
        service: all of them together.
        lora: their adapters (`ReplicaConfig.lora`); None for a service on its own, whose adapter can be merged.
        members: names of the services.
    """

    service: Service
    lora: LoraAdapters | None
    members: tuple[str, ...]


def pooled_adapters(services: Sequence[Service], *, rank: int = 16, slots: int = 8) -> tuple[AdapterPool, ...]:
    """Services with the same model, precision and targets, each a low-rank adapter, as one service per base model.

    The classes of the pool are those of its members, in proportion to their rates. Adapters are taken as equally
    popular: of all popularities that makes the expected number of distinct adapters in a step largest
    (sum_k 1 - (1 - p_k)^n is Schur-concave in p), hence their time and their loads, so a plan errs on the safe side.
    In memory a replica then holds `slots` adapters beside the weights (`planner.engine.weights.lora_bytes_per_gpu`).

    Args:
        services: of which some may share a model.
        rank: of the largest adapter.
        slots: adapters a replica keeps in GPU memory; no more than there are.

    Recordings are merged on one clock, and so are drifts f_k: sum (L_k / L) f_k(t).

    Equation: rate L = sum L_k; SCV = sum (L_k / L) I_k with I_k the member's index of dispersion in the long run, the
    asymptotic method for superposed streams (Whitt, Operations Research 30(1), 1982, p. 125; exact for Poisson).

    Raises:
        InputError: a closed loop, or a name that occurs twice.
    """
    require_unique("services.name", [service.name for service in services])
    groups: dict[tuple[object, ...], list[Service]] = {}
    for service in services:
        groups.setdefault((service.llm, service.precision, service.slo), []).append(service)
    return tuple(_adapter_pool(members, rank, slots) for members in groups.values())


def _adapter_pool(members: list[Service], rank: int, slots: int) -> AdapterPool:
    names, count = tuple(member.name for member in members), len(members)
    if count == 1:
        return AdapterPool(members[0], None, names)
    streams = [member.workload.open_arrivals for member in members]
    total = math.fsum(stream.rate_per_s for stream in streams)
    shares = [stream.rate_per_s / total for stream in streams]
    arrivals = _superposed(members, streams, shares)
    classes = tuple(
        kind.model_copy(update={"name": _class_name(member, kind), "share": kind.share * share})
        for member, share in zip(members, shares, strict=True)
        for kind in member.workload.classes
    )
    update = {"name": " + ".join(names), "workload": Workload(arrivals=arrivals, classes=classes)}
    lora = LoraAdapters(adapters=count, rank=rank, slots=min(slots, count))
    return AdapterPool(members[0].model_copy(update=update), lora, names)


def _superposed(
    members: Sequence[Service], streams: Sequence[ArrivalProcess], shares: Sequence[float]
) -> ArrivalProcess | RecordedArrivals:
    """The streams of all members: their recordings on one clock where all are recorded, else the sum of processes."""
    recorded = [member.workload.arrivals for member in members]
    if all(isinstance(arrivals, RecordedArrivals) for arrivals in recorded):
        parts = [arrivals for arrivals in recorded if isinstance(arrivals, RecordedArrivals)]
        return RecordedArrivals.merged(parts, [len(member.workload.classes) for member in members])
    indices = [stream.index_of_dispersion(LONG_RUN_GAPS) for stream in streams]
    scv = math.fsum(share * index for share, index in zip(shares, indices, strict=True))
    return ArrivalProcess(
        rate_per_s=math.fsum(stream.rate_per_s for stream in streams),
        scv=min(scv, MAX_SCV),
        source="superposed: " + ", ".join(member.name for member in members),
        drift=RateDrift.together([(share, stream.drift) for share, stream in zip(shares, streams, strict=True)]),
    )


def _class_name(member: Service, kind: RequestClass) -> str:
    return member.name if len(member.workload.classes) == 1 else f"{member.name}: {kind.name}"
