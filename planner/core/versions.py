"""Versions of the files a user keeps: scenarios, plans and calibrations.

Each file says in `schema_version` how its fields are to be read. One of an older version is brought up to date step by
step, each step a function from the content of one version to that of the next; one of a newer version is refused. A
version is raised when a field changes its meaning or goes; a new field that may be left out does not raise it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

from planner.core.errors import InputError

VERSION_KEY = "schema_version"
"""Field of a file that holds its version."""

Content = Mapping[str, Any]
"""A file as plain data."""
Migration = Callable[[Content], Content]
"""From the content of one version to that of the next, `VERSION_KEY` apart. Raises InputError where the older version
lacks what the next one needs. Malformed content is left for whoever validates it."""


@dataclass(frozen=True)
class Format:
    """A kind of file.

    Attributes:
        name: in messages.
        current: version that is written, and the newest that is read.
        remake: how such a file is written again, for messages.
        migrations: by version, from it to the next.
        unnumbered: the version of a content that says none; by default the current one.
    """

    name: str
    current: int
    remake: str
    migrations: Mapping[int, Migration] = field(default_factory=dict)
    unnumbered: Callable[[Content], int] | None = None

    def upgrade(self, content: Content) -> dict[str, Any]:
        """A copy of the content brought up to the current version, which it then names.

        Raises InputError: a version that is no whole number from 1 on or is newer than the current one, or an older
        content that does not hold what the current version needs.
        """
        version, upgraded = self._version(content), dict(content)
        while version < self.current:
            upgraded = dict(self.migrations[version](upgraded))
            version += 1
        return {**upgraded, VERSION_KEY: version}

    def _version(self, content: Content) -> int:
        absent = self.current if self.unnumbered is None else self.unnumbered(content)
        version = content.get(VERSION_KEY, absent)
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            fix = f"write {VERSION_KEY}: {self.current}, or {self.remake}"
            raise InputError(VERSION_KEY, version, f"must be a whole number from 1 to {self.current}", fix)
        if version > self.current:
            bound = f"this {self.name} was written by a newer planner: schema {version}, this one reads up to"
            raise InputError(
                VERSION_KEY, version, f"{bound} {self.current}", f"upgrade the planner, or {self.remake} with this one"
            )
        return version


# --- plans ----------------------------------------------------------------------------------------------------------

_SPLIT = re.compile(r" TP(?P<tp>\d+)(?: PP(?P<pp>\d+))?(?: DP(?P<dp>\d+))?(?: EP(?P<ep>\d+))? c\d+ b\d+")
"""Degrees of parallelism in the name of a pool, those of 1 left out save TP: ``h100-sxm TP2 DP4 EP8 c2048 b128``."""
_VERSION_1_POOL: Mapping[str, Any] = {
    "expert_skew": None,
    "mask_s": 0.0,
    "max_request_tokens": None,
    "request_limit": None,
}
"""Settings of a pool that version 1 had no field for, with the values that its plans were made with."""
_VERSION_2_PERFORMANCE: Mapping[str, Any] = {"interval": {}, "horizon_s": 0.0, "link_utilisation": 0.0, "rate_cv": 0.0}
"""Fields of a performance that version 2 did not have."""
_VERSION_1_TRANSFER: Mapping[str, bool] = {"shared": True, "layerwise": False, "first_token_from_decode": False}
"""The only KV transfer that plans of version 1 were made with."""


def _plan_of_1(content: Content) -> Content:
    """Version 1 said of a pool's split its TP only; the other degrees stand in the name of the deployment."""
    deployments = content.get("deployments")
    if not isinstance(deployments, list):
        return content
    upgraded = [_planned_of_1(planned) if isinstance(planned, Mapping) else planned for planned in deployments]
    cost = content.get("cost")
    if isinstance(cost, Mapping):
        cost = {"usd_per_million_tokens": None, **cost}
    return {**content, "cost": cost, "deployments": upgraded}


def _planned_of_1(planned: Content) -> Content:
    """A planned deployment with the split of each of its pools, and its KV transfer."""
    deployment = planned.get("deployment")
    pools = deployment.get("pools") if isinstance(deployment, Mapping) else None
    if not isinstance(deployment, Mapping) or not isinstance(pools, list):
        return planned
    names = str(planned.get("name", "")).partition(" ")[2].split(" + ")
    if len(names) == len(pools):
        pairs = zip(pools, names, strict=True)
        pools = [_pool_of_1(pool, name) if isinstance(pool, Mapping) else pool for pool, name in pairs]
    return {**planned, "deployment": {**deployment, "transfer": dict(_VERSION_1_TRANSFER), "pools": pools}}


def _pool_of_1(pool: Content, name: str) -> Content:
    """The pool with its split, where its name says one that fits its TP and GPUs; else it stays without."""
    degrees = _SPLIT.match(name.removeprefix(str(pool.get("sku"))))
    if degrees is None:
        return pool
    split = {degree: int(text or 1) for degree, text in degrees.groupdict().items()}
    gpus = split["tp"] * split["pp"] * split["dp"]
    replicas = pool.get("replicas")
    if split["tp"] != pool.get("tp") or not isinstance(replicas, int) or replicas * gpus != pool.get("gpus"):
        return pool
    return {**_VERSION_1_POOL, **pool, "parallelism": split}


def _plan_of_2(content: Content) -> Content:
    """Version 2 counted the configurations that another stands in for, and named none."""
    deployments = content.get("deployments")
    if not isinstance(deployments, list):
        return content
    upgraded = [_planned_of_2(planned) if isinstance(planned, Mapping) else planned for planned in deployments]
    return {**content, "dominated": [], "deployments": upgraded}


def _planned_of_2(planned: Content) -> Content:
    """A planned deployment with what version 2 did not keep of its performances."""
    performances = {name: planned.get(name) for name in ("predicted", "simulated")}
    kept = {name: {**_VERSION_2_PERFORMANCE, **one} for name, one in performances.items() if isinstance(one, Mapping)}
    return {**planned, **kept}


def _plan_of_3(content: Content) -> Content:
    """Version 3 held a plan at the deviations of its confidence, or at those beyond them that its corrections say."""
    asked, request, taught = (content.get(name) for name in ("confidence", "request", "corrections"))
    confidence = asked.get("asked") if isinstance(asked, Mapping) else None
    deviations = NormalDist().inv_cdf(confidence) if isinstance(confidence, float) and 0.0 < confidence < 1.0 else 0.0
    upgraded = {"slow_deviations": deviations, **content}
    if isinstance(taught, Mapping) and isinstance(request, Mapping):
        measured = request.get("measured_steps", {})
        doubt = {"confidence": request.get("confidence", 0.9), "measured": measured}
        kept = {name: part for name, part in taught.items() if name != "deviations"}
        upgraded["corrections"] = {**kept, "doubt": doubt, "sure": [], "together": 1.0}
    return upgraded


# --- calibrations ---------------------------------------------------------------------------------------------------


def _calibration_of_1(content: Content) -> Content:
    """Version 1 held an achieved share of peak per operator family, of which no fit of a kernel can be made."""
    bound = "schema 1 holds one efficiency per operator family, not the fits of kernels that steps are timed by"
    raise InputError(VERSION_KEY, 1, bound, CALIBRATION.remake)


# --- the formats ---------------------------------------------------------------------------------------------------

SCENARIO = Format("scenario", 1, "write the scenario again")
"""Scenarios (YAML); most say no version."""
PLAN = Format("plan", 4, "plan again with --json", {1: _plan_of_1, 2: _plan_of_2, 3: _plan_of_3})
"""Plans as JSON. 2: pools say their whole split and every setting of their replicas, deployments their KV transfer. 3:
every field of a plan, so that it can be read back. 4: how slow the steps are that the plan holds at."""
CALIBRATION = Format(
    "calibration",
    2,
    "measure and fit again with python -m calibration",
    {1: _calibration_of_1},
    lambda content: 1 if "efficiency" in content and "kernels" not in content else 2,  # version 1 had no number
)
"""Calibrations as JSON. 2: fits by kernel, with their errors."""
