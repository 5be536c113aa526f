"""Replicas that span servers: what every one of them is told, and the further ones besides.

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
    """What a replica's servers are told of one another; nothing where it fits on one.

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
