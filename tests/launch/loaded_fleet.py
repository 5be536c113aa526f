"""A fleet of stand-ins, started from an export, that is told how fast its steps are, loaded and scraped.

``python -m tests.launch.loaded_fleet FOLDER`` does what the tutorial `docs/tutorial/close-the-loop.md` says with the
files of that folder, and writes the two scrapes that the page goes on with.
"""

from __future__ import annotations

import random
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from planner import launch
from planner.engine import ReplicaConfig
from planner.launch.placement import PlacedReplica, place_replicas
from planner.launch.routers import FIRST_ROUTER_PORT
from planner.launch.spec import FIRST_PORT
from tests.launch.test_started import Site

LENGTHS = (300, 60)
"""Tokens of every request."""
SPEED = 5.0
"""Seconds of an engine in one of this machine. A step of milliseconds is then as long as Python is exact to."""
FEW, MANY = 5.0, 25.0
"""Requests that decode, between which a step's time is taken as a line."""
LATE_S = 0.015
"""Mean lateness of requests [s of the engines] up to which a load is what was asked for, at a mean gap of 50 ms. In six
loads beside other work that were 4 to 15 ms late, the step times found were within 0.3 % of one another."""
NAMES = count()


def told_steps(config: ReplicaConfig, factor: float) -> Mapping[str, str]:
    """The environment of stand-ins whose steps take `factor` times what those of a replica take."""
    prompt, context = LENGTHS[0], LENGTHS[0] + LENGTHS[1] / 2.0
    few_s, many_s = (config.timer.decode_s(n, n * context) for n in (FEW, MANY))
    request_s = (many_s - few_s) / (MANY - FEW)
    step_s = few_s - FEW * request_s
    beside = FEW if config.schedule.mixed_steps else 0.0
    pairs = prompt * (prompt + 1.0) / 2.0
    prompt_s = config.timer.step_s(beside, beside * context, float(prompt), pairs, float(prompt), 1.0)
    parts = (step_s, request_s, (prompt_s - step_s - beside * request_s) / prompt, config.costs.request_s)
    return {"STUB_STEP_S": " ".join(f"{factor * part:.9f}" for part in parts), "STUB_SPEED": str(SPEED)}


@dataclass(frozen=True)
class LoadedFleet:
    """A fleet of one pool that runs on one server."""

    site: Site
    replicas: tuple[PlacedReplica, ...]

    def load(self, rate_per_s: float, requests: int) -> tuple[float, float]:
        """Poisson arrivals of requests that share no prompt, all answered.

        Returns:
            How long that took, and how late a request was sent on average [s of the engines]: late ones come together,
            so that a load that a busy machine sent late is another one.
        """
        host = f"{self.site.addresses[1]}:{FIRST_ROUTER_PORT if len(self.replicas) > 1 else FIRST_PORT}"
        chance, begun, late_s = random.Random(7), time.monotonic(), list[float]()

        def ask(due_s: float) -> None:
            time.sleep(max(0.0, begun + due_s - time.monotonic()))
            late_s.append(time.monotonic() - begun - due_s)
            name = next(NAMES)
            prompt = " ".join(f"{name}.{word}" for word in range(LENGTHS[0]))
            messages = [{"role": "user", "content": prompt}]
            content = {"model": self.replicas[0].spec.model, "messages": messages, "max_tokens": LENGTHS[1]}
            self.site.asked(host, "/v1/chat/completions", content)

        due_s, at_s = [], 0.0
        for _ in range(requests):
            at_s += chance.expovariate(SPEED * rate_per_s)
            due_s.append(at_s)
        with ThreadPoolExecutor(96) as pool:
            for _ in pool.map(ask, due_s):
                pass
        return SPEED * (time.monotonic() - begun), SPEED * sum(late_s) / requests

    def scrape(self) -> str:
        """The pages of all replicas, one after the other."""
        pages = []
        for replica in self.replicas:
            host = f"{self.site.addresses[1]}:{replica.port}"
            with urllib.request.urlopen(f"http://{host}{replica.spec.metrics_path}", timeout=20) as answer:
                pages.append(answer.read().decode())
        return "".join(pages)


@contextmanager
def started(document: Path, deploy: Path, folder: Path, factor: float) -> Iterator[LoadedFleet]:
    """The fleet of a plan from its exported scripts, with steps `factor` times as long as the plan has them."""
    fleet = launch.read_fleet(document)
    (launched,) = fleet.deployments
    files = {path.name: path.read_text(encoding="utf-8") for path in deploy.iterdir()}
    site = Site(folder, files, servers=1)
    site.environment.update(told_steps(launched.deployment.pools[0].config, factor))
    try:
        site.start(["/bin/bash", "start.sh"], 1)
        yield LoadedFleet(site, place_replicas(launch.launch_specs(fleet)))
    finally:
        site.stop()


def record(folder: Path, rate_per_s: float = 17.0, factor: float = 1.05, apart_s: float = 600.0) -> None:
    """Two scrapes of a fleet under load, as far apart as the tutorial says."""
    with (
        TemporaryDirectory() as work,
        started(folder / "plan.json", folder / "deploy", Path(work), factor) as fleet,
        ThreadPoolExecutor(1) as beside,
    ):
        done = beside.submit(fleet.load, rate_per_s, int(rate_per_s * (apart_s + 60.0)))
        time.sleep(30.0 / SPEED)
        begun = time.monotonic()
        (folder / "before.txt").write_text(fleet.scrape(), encoding="utf-8")
        time.sleep(begun + apart_s / SPEED - time.monotonic())
        (folder / "after.txt").write_text(fleet.scrape(), encoding="utf-8")
        done.result()


if __name__ == "__main__":
    record(Path(sys.argv[1]))
