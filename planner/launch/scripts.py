"""A fleet as shell scripts: one that starts what a server runs, one per pool and router, and a README in words."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

import yaml

from planner.core import number_of
from planner.launch.escaping import one_line, slug
from planner.launch.flags import word_of, words_of
from planner.launch.fleet import Fleet
from planner.launch.own_ports import OwnPort
from planner.launch.placement import PlacedReplica, place_replicas, replicas_of, server_numbers
from planner.launch.readme import README_NAME, bullets, closing_sections, name_text, page, pool_table
from planner.launch.routers import (
    ReplicaAddress,
    RouterSpec,
    config_words,
    router_file,
    router_specs,
    url_words,
)
from planner.launch.servers import shell_words
from planner.launch.spec import FIRST_PORT, NVIDIA, LaunchSpec, deployments, launch_specs
from planner.serving import Role

COMPOSE_NAME = "docker-compose.yaml"
RENDER_NODES_NAME = "render-nodes.sh"
"""File of the Compose export that reads which render nodes the GPUs of AMD have."""
START_NAME = "start.sh"
SERVERS_NAME = "servers.env"
"""File of the user with the addresses of the servers, where there are several."""
LOOPBACK = "127.0.0.1"
"""Address of the only server of a fleet."""


def files(fleet: Fleet) -> dict[str, str]:
    """Scripts, the engines' own YAML files and a README: name -> content."""
    specs = launch_specs(fleet)
    routers, replicas = router_specs(specs), place_replicas(specs)
    scripts = {START_NAME: start_script(replicas, routers)}
    scripts |= {f"{spec.name}.sh": shell_script(spec) for spec in specs}
    scripts |= {f"{router.name}.sh": router_script(router, replicas) for router in routers}
    return {**scripts, **config_files(specs), README_NAME: readme(fleet, specs, routers)}


def config_files(specs: Sequence[LaunchSpec]) -> dict[str, str]:
    """The engines' own YAML files, of those that need one: name -> content."""
    return {
        spec.config_name: yaml.safe_dump(dict(spec.configuration), sort_keys=False)
        for spec in specs
        if spec.configuration
    }


def server_variable(number: int) -> str:
    """Environment variable with the address of a server."""
    return f"SERVER_{number}"


def replica_addresses(
    router: RouterSpec, replicas: Sequence[PlacedReplica], addresses: Mapping[int, str]
) -> dict[Role, list[ReplicaAddress]]:
    """Where a router finds the replicas of its pools, given the address of each server."""
    return {
        pool.role: [
            ReplicaAddress(
                f"{addresses[replica.servers[0]]}:{replica.port}",
                {port.flag or port.variable: replica.own_port(port) for port in pool.own_ports},
            )
            for replica in replicas_of(replicas, pool)
        ]
        for pool in router.pools
    }


# --- all of a server ------------------------------------------------------------------------------------------------


def start_script(replicas: Sequence[PlacedReplica], routers: Sequence[RouterSpec]) -> str:
    """A Bash script that starts every replica and router that the plan puts on one server, and stops them together."""
    servers = server_numbers(replicas)
    arms = [line for number in servers for line in _server_arm(number, replicas, routers)]
    last = servers[-1]
    usage = "" if last == 1 else f" SERVER, the number of this server (1 to {last})"
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f"# Starts all that a server of the plan runs: ./{START_NAME}{usage}. Ctrl-C stops it.",
            *_addresses_head(last),
            "set -euo pipefail",
            'cd "$(dirname "$0")"',
            *_address_check(last),
            *_model_checks([replica.spec for replica in replicas]),
            'LOGS="${LOGS:-logs}"',
            'mkdir -p "${LOGS}"',
            "",
            "start() {",
            '  local name="$1"',
            "  shift",
            '  env "$@" > "${LOGS}/${name}.log" 2>&1 &',
            '  echo "${name}: process $!, ${LOGS}/${name}.log"',
            "}",
            "",
            "trap 'trap - EXIT; kill $(jobs -p) 2> /dev/null || true; wait' EXIT",
            "trap 'exit 130' INT",
            "trap 'exit 143' TERM",
            'case "${1:-1}" in' if last == 1 else 'case "${1:-}" in',
            *arms,
            "*)",
            f'  echo "server = ${{1:-}}: must be 1 to {last}. Fix: ./{START_NAME} 1" >&2',
            "  exit 2",
            "  ;;",
            "esac",
            "wait -n || true",
            'echo "a process has ended, so all are stopped: its log in ${LOGS} says why" >&2',
            "exit 1",
            "",
        ]
    )


def _addresses_head(last: int) -> list[str]:
    if last == 1:
        return []
    return [
        f"# Every server needs the addresses of all, SERVER_1 to SERVER_{last}: in its environment, or as lines",
        f"# SERVER_1=... of a file {SERVERS_NAME} beside this one.",
    ]


def _address_check(last: int) -> list[str]:
    """Lines that know the address of every server, or stop."""
    if last == 1:
        return [f'export SERVER_1="${{SERVER_1:-{LOOPBACK}}}"']
    return [
        f"if [ -f {SERVERS_NAME} ]; then . ./{SERVERS_NAME}; fi",
        f"for number in $(seq {last}); do",
        "  name=SERVER_${number}",
        '  if [ -z "${!name:-}" ]; then',
        f'    echo "set ${{name}} to the address of server ${{number}}, or write it into {SERVERS_NAME}" >&2',
        "    exit 2",
        "  fi",
        '  export "${name?}"',
        "done",
    ]


def _model_checks(specs: Sequence[LaunchSpec]) -> list[str]:
    """Lines that stop where the user has not said which checkpoint a pool serves."""
    unnamed = {model_variable(spec): spec for spec in specs if not spec.model}
    return [_required_variable(name, _checkpoint_text(name, spec)) for name, spec in unnamed.items()]


def _server_arm(number: int, replicas: Sequence[PlacedReplica], routers: Sequence[RouterSpec]) -> list[str]:
    """The arm of one server: a line for each of its processes."""
    lines = [_replica_line(replica, number) for replica in replicas if number in replica.servers]
    lines += [
        f"start {router.name} bash ./{router.name}.sh"
        for router in routers
        if router_server(router, replicas) == number
    ]
    return [f"{number})", *(f"  {line}" for line in lines), "  ;;"]


def router_server(router: RouterSpec, replicas: Sequence[PlacedReplica]) -> int:
    """The server of a router: that of the first replica of its first pool."""
    return replicas_of(replicas, router.pools[0])[0].servers[0]


def _replica_line(replica: PlacedReplica, server: int) -> str:
    """The words that start a replica, or its part on a further server."""
    spec = replica.spec
    variable, gpus = replica.visible_gpus
    words = [f"{variable}={gpus}", f"PORT={replica.port}"]
    words += [f"{port.variable}={replica.own_port(port)}" for port in spec.own_ports]
    words += [f'MODEL="${{{model_variable(spec)}}}"'] if not spec.model else []
    words += [f'ADDRESS="${{{server_variable(server)}}}"'] if spec.address_variables else []
    name = replica.name
    if spec.servers > 1:
        rank = replica.servers.index(server)
        name += f"-of-{rank + 1}"
        words += [f"SERVER_RANK={rank}", f'LEADER="${{{server_variable(replica.servers[0])}}}"']
    return " ".join(["start", name, *words, "bash", f"./{spec.name}.sh"])


# --- one replica ----------------------------------------------------------------------------------------------------


def shell_script(spec: LaunchSpec) -> str:
    """A Bash script that starts one replica (its part on one server), as its environment says: GPUs, model, ports."""
    model = f"MODEL=${{MODEL:-{spec.model}}}" if spec.model else _model_check(spec)
    variables = {"{model}": '"${MODEL}"', "{port}": '"${PORT}"'}
    command = " ".join(variables.get(word) or shlex.quote(word) for word in spec.command)
    lines = [command, *(" ".join(shlex.quote(word) for word in pair if word) for pair in spec.flags)]
    lines += (
        [" ".join(map(shlex.quote, words_of(spec.engine_id, "metrics")))] if word_of(spec.engine_id, "metrics") else []
    )
    lines += [f'{port.flag} "${{{port.variable}}}"' for port in spec.own_ports if port.flag]
    if spec.configuration:
        flag = spec.config_flag.removesuffix("{value}").strip()
        lines.append(f'{shlex.quote(flag)} "$(dirname "$0")"/{shlex.quote(spec.config_name)}')
    if spec.servers > 1:
        lines += [*map(" ".join, _shell_pairs(spec)), '"${FURTHER[@]}"']
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            *(f"# {one_line(text)}" for text in _head_lines(spec)),
            "set -euo pipefail",
            model,
            f"PORT=${{PORT:-{FIRST_PORT}}}",
            *(_own_port_line(port) for port in spec.own_ports),
            *_server_lines(spec),
            *(f"export {name}={shlex.quote(value)}" for name, value in spec.environment),
            *_address_lines(spec),
            "exec " + " \\\n  ".join(lines),
            "",
        ]
    )


def _own_port_line(port: OwnPort) -> str:
    export = "" if port.flag else "export "
    return f'{export}{port.variable}="${{{port.variable}:-{port.default}}}"'


def _shell_words(spec: LaunchSpec, words: tuple[str, ...]) -> list[str]:
    return shell_words(words, spec.server_words.ranks_each, "SERVER_RANK", "LEADER")


def _shell_pairs(spec: LaunchSpec) -> list[list[str]]:
    """Flags of the servers, each with its value."""
    grouped: list[list[str]] = []
    for word in _shell_words(spec, spec.server_words.every):
        if word.startswith("--"):
            grouped.append([word])
        else:
            grouped[-1].append(word)
    return grouped


def _server_lines(spec: LaunchSpec) -> list[str]:
    """Where this server stands among those of its replica; nothing where there is but one."""
    if spec.servers == 1:
        return []
    others = "1 on the other" if spec.servers == 2 else f"1 to {spec.servers - 1} on the others"
    further = " ".join(_shell_words(spec, spec.server_words.further))
    return [
        _required_variable("SERVER_RANK", f"set SERVER_RANK to 0 on the first server of a replica, {others}"),
        _required_variable("LEADER", "set LEADER to the address of the first server of the replica"),
        "FURTHER=()",
        f'if [ "${{SERVER_RANK}}" -gt 0 ]; then FURTHER=({further}); fi',
    ]


def _address_lines(spec: LaunchSpec) -> list[str]:
    """Variables that hold the address of the server itself."""
    if not spec.address_variables:
        return []
    text = "set ADDRESS to the IP address at which the servers of the other pool reach this one"
    return [_required_variable("ADDRESS", text), *(f'export {name}="${{ADDRESS}}"' for name in spec.address_variables)]


def _model_check(spec: LaunchSpec) -> str:
    """The line that stops a script whose user has not said which checkpoint to serve."""
    return _required_variable("MODEL", _checkpoint_text("MODEL", spec))


def _checkpoint_text(variable: str, spec: LaunchSpec) -> str:
    return f"set {variable} to the repository or folder of a checkpoint: {one_line(spec.checkpoint)}"


def _required_variable(name: str, text: str) -> str:
    """A line that stops with a text where a variable is not set."""
    return f'if [ -z "${{{name}:-}}" ]; then echo {shlex.quote(text)} >&2; exit 2; fi'


def _head_lines(spec: LaunchSpec) -> tuple[str, ...]:
    spans = [f"It spans {spec.servers} servers: run this on each of them."] if spec.servers > 1 else []
    return (
        f"One replica of {spec.name}: {number_of(spec.gpus, 'GPU')} {spec.sku}, {spec.engine} {spec.engine_version}.",
        *spans,
        f"The plan runs {number_of(spec.replicas, 'replica')} of it.",
        *spec.notes,
    )


# --- a router -------------------------------------------------------------------------------------------------------


def router_script(router: RouterSpec, replicas: Sequence[PlacedReplica]) -> str:
    """A Bash script that starts a router as soon as its replicas answer."""
    servers = server_numbers(replica for pool in router.pools for replica in replicas_of(replicas, pool))
    variables = {number: f"${{{server_variable(number)}}}" for number in servers}
    found = replica_addresses(router, replicas, variables)
    command = " ".join(shlex.quote(word.replace("{port}", str(router.port))) for word in router.command)
    if router.config_flag:
        hosts = {role: [address.host for address in addresses] for role, addresses in found.items()}
        setup = [
            "CONFIG=$(mktemp)",
            'cat > "${CONFIG}" <<END',
            *(["pid ${CONFIG}.pid;"] if router.is_nginx else []),
            router_file(router, str(router.port), hosts).rstrip("\n"),
            "END",
        ]
        lines = [command, " ".join(_quoted(word) for word in config_words(router, "${CONFIG}"))]
    else:
        setup = []
        lines = [command, *_flag_lines(url_words(router, found)), *_flag_lines(router.policy)]
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f"# The router in front of {' and '.join(pool.name for pool in router.pools)}.",
            *(f"# {one_line(note)}" for note in router.notes),
            "set -euo pipefail",
            *(_server_check(number, len(server_numbers(replicas))) for number in servers),
            *_waiting_lines(router, [address for addresses in found.values() for address in addresses]),
            *setup,
            "exec " + " \\\n  ".join(lines),
            "",
        ]
    )


def _server_check(number: int, servers: int) -> str:
    name = server_variable(number)
    if servers == 1:
        return f'{name}="${{{name}:-{LOOPBACK}}}"'
    return _required_variable(name, f"set {name} to the address of server {number}")


def _waiting_lines(router: RouterSpec, addresses: Sequence[ReplicaAddress]) -> list[str]:
    health = router.pools[0].health_path
    return [
        "for host in " + " \\\n  ".join(f'"{address.host}"' for address in addresses),
        "do",
        f'  until curl -fs -o /dev/null --max-time 5 "http://${{host}}{health}"; do sleep 1; done',
        "done",
    ]


def _quoted(word: str) -> str:
    """A word for Bash in which variables are filled in; those with one hold nothing else that Bash would read."""
    return f'"{word}"' if "${" in word else shlex.quote(word)


def _flag_lines(words: Sequence[str]) -> list[str]:
    """Words of a command line, a flag with its values on each line."""
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            lines.append([word])
        else:
            lines[-1].append(_quoted(word))
    return [" ".join(line) for line in lines]


# --- words ----------------------------------------------------------------------------------------------------------


def model_variable(spec: LaunchSpec) -> str:
    """Environment variable of the model of a pool in the Compose file."""
    return f"MODEL_{slug(spec.service).replace('-', '_').upper()}"


def readme(fleet: Fleet, specs: Sequence[LaunchSpec], routers: Sequence[RouterSpec]) -> str:
    """What the files are, how they are started, where clients connect, what the targets are and how to check them."""
    replicas = place_replicas(specs)
    unnamed_models = [
        f"`{spec.name}`: set `{model_variable(spec)}` to a checkpoint of {name_text(spec.checkpoint)}."
        for spec in specs
        if not spec.model
    ]
    notes = [note for spec in specs for note in spec.notes] + [note for router in routers for note in router.notes]
    sections = [
        _start_text(server_numbers(replicas)[-1]),
        *([_RENDER_NODES] if any(spec.vendor != NVIDIA for spec in specs) else []),
        pool_table(specs, servers={spec.name: _servers_text(replicas_of(replicas, spec)) for spec in specs}),
        "## Where clients connect",
        bullets(_entry_lines(specs, routers, replicas)),
        *(["## Models to name", bullets(unnamed_models)] if unnamed_models else []),
        *closing_sections(fleet, specs, notes),
    ]
    return page(f"Launch of {name_text(fleet.name)}", sections)


def _start_text(servers: int) -> str:
    """The commands that start a server, by scripts and by Compose."""
    if servers == 1:
        return (
            f"`./{START_NAME}` (engines and routers installed) or `docker compose up` starts the whole fleet on its "
            "server: every replica on GPUs and ports of its own, and the routers in front."
        )
    return (
        f"The fleet has {servers} servers. Write their addresses into `{SERVERS_NAME}`, a line `SERVER_1=10.0.0.1` for "
        f"each, and copy this folder to all of them. On server 2 `./{START_NAME} 2` (engines and routers installed) or "
        f"`docker compose --env-file {SERVERS_NAME} --profile server-2 up` starts what the plan puts there: every "
        "replica on GPUs and ports of its own, and the routers in front; likewise on the others."
    )


_RENDER_NODES = (
    f"On GPUs of AMD Compose asks for their render nodes first: `./{RENDER_NODES_NAME} >> .env`, with several servers "
    f"`>> {SERVERS_NAME}` on each."
)


def _servers_text(replicas: Sequence[PlacedReplica]) -> str:
    """The servers that replicas run on, by their numbers."""
    numbers = server_numbers(replicas)
    several = len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1
    return f"{numbers[0]} to {numbers[-1]}" if several else ", ".join(map(str, numbers))


def _entry_lines(
    specs: Sequence[LaunchSpec], routers: Sequence[RouterSpec], replicas: Sequence[PlacedReplica]
) -> list[str]:
    """Where requests of each deployment go."""
    by_deployment = {router.pools[0].deployment: router for router in routers}
    lines = []
    for pools in deployments(specs):
        router, first = by_deployment.get(pools[0].deployment), replicas_of(replicas, pools[0])[0]
        by, port = ("its only replica", first.port) if router is None else (f"`{router.name}`", router.port)
        lines.append(f"{name_text(pools[0].service)}: {by}, server {first.servers[0]}, port {port}.")
    return lines
