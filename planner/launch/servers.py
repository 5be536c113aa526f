"""Ports that replicas of one server must not share, and replicas that span servers: words of the first and the others.

Words keep the places that only the server itself can fill: ``{rank}`` (0 on the first), ``{leader}`` (address of the
first) and ``{first_rank}`` (of its data-parallel ranks).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from planner.core import UnsupportedFeatureError
from planner.engine import ReplicaConfig
from planner.launch.flags import words_of

RANK = "{rank}"
LEADER = "{leader}"
FIRST_RANK = "{first_rank}"
OWN_PORT_STEP = 10
"""Ports kept for each GPU from the first one on. A choice: SGLang takes seven in a row for its attention ranks, vLLM
one for each (`PortArgs.init_new` of sglang 0.5.23; `NixlBaseConnectorScheduler` of vllm 0.33.0)."""


@dataclass(frozen=True)
class OwnPort:
    """A port that tells replicas of one server apart.

    Attributes:
        variable: environment variable of a script that holds it.
        flag: that takes it; empty where the engine reads the variable itself.
        host: text before it, as ``127.0.0.1:``.
        first: the port where the first GPU of the replica is number 0.
    """

    variable: str
    flag: str
    host: str
    first: int

    @classmethod
    def of(cls, text: str) -> OwnPort:
        """As the table of flags writes it.

        >>> OwnPort.of("VLLM_NIXL_SIDE_CHANNEL_PORT=5600")
        OwnPort(variable='VLLM_NIXL_SIDE_CHANNEL_PORT', flag='', host='', first=5600)
        >>> OwnPort.of("--dist-init-addr 127.0.0.1:20000")
        OwnPort(variable='DIST_INIT_ADDR', flag='--dist-init-addr', host='127.0.0.1:', first=20000)
        """
        if text.startswith("--"):
            flag, value = shlex.split(text)
            variable = flag.removeprefix("--").replace("-", "_").upper()
        else:
            (variable, value), flag = text.split("="), ""
        host, colon, port = value.rpartition(":")
        return cls(variable, flag, host + colon, int(port))

    @property
    def default(self) -> str:
        """Of a replica that is alone on its server."""
        return f"{self.host}{self.first}"


@dataclass(frozen=True)
class ServerWords:
    """Words of the command line on the servers of one replica.

    Attributes:
        every: on each of them.
        further: on each but the first, besides.
        ranks_each: data-parallel ranks of one server.
    """

    every: tuple[str, ...] = ()
    further: tuple[str, ...] = ()
    ranks_each: int = 1


def server_words(config: ReplicaConfig) -> ServerWords:
    """Words that tell the servers of a replica of one another; empty where it fits on one.

    Raises:
        UnsupportedFeatureError: the engine has no documented way to run this replica on several servers.
    """
    gpus, room = config.parallelism.gpus, config.sku.node.gpus
    servers = -(-gpus // room)
    if servers == 1:
        return ServerWords()
    if gpus % servers:
        raise _split_refused(config, f"does not spread evenly over {servers} servers of {room} GPUs")
    engine = config.engine.id
    by_rank = config.parallelism.dp > 1 and bool(words_of(engine, "data_parallel_servers"))
    knob = "data_parallel_servers" if by_rank else "servers"
    words = words_of(engine, knob)
    if not words:
        raise _split_refused(
            config,
            f"is more than the {room} GPUs of a server, and {config.engine.name} has no verified way to span several",
        )
    if by_rank and config.parallelism.dp % servers:
        raise _split_refused(config, f"does not put whole data-parallel ranks on {servers} servers")
    ranks = config.parallelism.dp // servers if by_rank else 1
    every = tuple(word.replace("{servers}", str(servers)).replace("{local}", str(ranks)) for word in words)
    return ServerWords(every, words_of(engine, f"further_{knob}"), ranks)


def _split_refused(config: ReplicaConfig, bound: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        "parallelism", config.parallelism.gpus, bound, "launch it by hand, or use smaller degrees"
    )


def filled_words(words: tuple[str, ...], places: Mapping[str, str]) -> list[str]:
    """Words with the places of a server filled in.

    >>> filled_words(("--node-rank", "{rank}", "--init", "{leader}:20000"), {"{rank}": "$R", "{leader}": "$L"})
    ['--node-rank', '$R', '--init', '$L:20000']
    """
    texts = list(words)
    for place, text in places.items():
        texts = [word.replace(place, text) for word in texts]
    return texts


def shell_words(words: tuple[str, ...], ranks_each: int, rank: str, leader: str) -> list[str]:
    """Words for Bash, quoted; rank and leader are names of variables.

    >>> shell_words(("--start", "{first_rank}"), 8, "RANK", "LEADER")
    ['--start', '"$((RANK * 8))"']
    """
    places = {RANK: f"${{{rank}}}", LEADER: f"${{{leader}}}", FIRST_RANK: f"$(({rank} * {ranks_each}))"}
    return [
        f'"{filled_words((word,), places)[0]}"' if any(place in word for place in places) else shlex.quote(word)
        for word in words
    ]
