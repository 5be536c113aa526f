"""Ports besides the one for requests of which every replica on a server needs its own: rows of kind ``port``."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

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
