"""A fleet as shell scripts: per pool one that starts a replica, one per router, and a README in words."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

import yaml

from planner.core import counted, markdown_text, significant, with_unit
from planner.launch.escaping import one_line, slug
from planner.launch.fleet import Fleet, LaunchedDeployment
from planner.launch.routers import (
    RouterSpec,
    config_words,
    router_configuration,
    router_specs,
    url_words,
)
from planner.launch.servers import shell_words
from planner.launch.spec import LaunchSpec, launch_specs
from planner.serving import Role

COMPOSE_NAME = "docker-compose.yaml"
README_NAME = "README.md"


def files(fleet: Fleet) -> dict[str, str]:
    """A script for each pool and router, the engines' own YAML files and a README: name -> content."""
    specs = launch_specs(fleet)
    routers = router_specs(specs)
    scripts = {f"{spec.name}.sh": shell_script(spec) for spec in specs}
    scripts |= {f"{router.name}.sh": router_script(router) for router in routers}
    return {**scripts, **config_files(specs, routers), README_NAME: readme(fleet, specs, routers)}


def config_files(specs: Sequence[LaunchSpec], routers: Sequence[RouterSpec] = ()) -> dict[str, str]:
    """The engines' and routers' own YAML files, of those that need one: name -> content."""
    contents = {spec.config_name: dict(spec.configuration) for spec in specs if spec.configuration}
    for router in routers:
        if router.config_flag:
            hosts = {pool.role: replica_hosts(pool) for pool in router.pools}
            contents[router.config_name] = router_configuration(router, hosts)
    return {name: yaml.safe_dump(content, sort_keys=False) for name, content in contents.items()}


def replica_hosts(pool: LaunchSpec) -> list[str]:
    """A name and port for each replica of a pool; the names are to be made known, or replaced by addresses."""
    return [f"{pool.name}-{number + 1}:{pool.port}" for number in range(pool.replicas)]


def shell_script(spec: LaunchSpec) -> str:
    """A Bash script that starts one replica (its part on one server); MODEL and PORT may be set in its environment."""
    model = f"MODEL=${{MODEL:-{spec.model}}}" if spec.model else _model_wanted(spec)
    variables = {"{model}": '"${MODEL}"', "{port}": '"${PORT}"'}
    command = " ".join(variables.get(word) or shlex.quote(word) for word in spec.command)
    lines = [command, *(" ".join(shlex.quote(word) for word in pair if word) for pair in spec.flags)]
    if spec.configuration:
        flag = spec.config_flag.removesuffix("{value}").strip()
        lines.append(f'{shlex.quote(flag)} "$(dirname "$0")"/{shlex.quote(spec.config_name)}')
    if spec.servers > 1:
        lines += [*map(" ".join, _shell_pairs(spec)), '"${FURTHER[@]}"']
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            *(f"# {one_line(text)}" for text in _about(spec)),
            "set -euo pipefail",
            model,
            f"PORT=${{PORT:-{spec.port}}}",
            *_server_lines(spec),
            *(f"export {name}={shlex.quote(value)}" for name, value in spec.environment),
            *_address_lines(spec),
            "exec " + " \\\n  ".join(lines),
            "",
        ]
    )


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
    rank = shlex.quote(f"set SERVER_RANK to 0 on the first server of a replica, {others}")
    leader = shlex.quote("set LEADER to the address of the first server of the replica")
    further = " ".join(_shell_words(spec, spec.server_words.further))
    return [
        f'if [ -z "${{SERVER_RANK:-}}" ]; then echo {rank} >&2; exit 2; fi',
        f'if [ -z "${{LEADER:-}}" ]; then echo {leader} >&2; exit 2; fi',
        "FURTHER=()",
        f'if [ "${{SERVER_RANK}}" -gt 0 ]; then FURTHER=({further}); fi',
    ]


def _address_lines(spec: LaunchSpec) -> list[str]:
    """Variables that hold the address of the server itself."""
    if not spec.address_variables:
        return []
    words = shlex.quote("set ADDRESS to the IP address at which the servers of the other pool reach this one")
    wanted = f'if [ -z "${{ADDRESS:-}}" ]; then echo {words} >&2; exit 2; fi'
    return [wanted, *(f'export {name}="${{ADDRESS}}"' for name in spec.address_variables)]


def _model_wanted(spec: LaunchSpec) -> str:
    """The line that stops a script whose user has not said which checkpoint to serve."""
    words = shlex.quote(f"set MODEL to the repository or folder of a checkpoint: {one_line(spec.checkpoint)}")
    return f'if [ -z "${{MODEL:-}}" ]; then echo {words} >&2; exit 2; fi'


def _about(spec: LaunchSpec) -> tuple[str, ...]:
    spans = [f"It spans {spec.servers} servers: run this on each of them."] if spec.servers > 1 else []
    return (
        f"One replica of {spec.name}: {counted(spec.gpus, 'GPU')} {spec.sku}, {spec.engine} {spec.engine_version}.",
        *spans,
        f"The plan runs {counted(spec.replicas, 'replica')} of it on {counted(spec.nodes, 'server')}.",
        *spec.notes,
    )


def router_script(router: RouterSpec) -> str:
    """A Bash script that starts a router; URLs of the replicas come from its environment, or stand in its file."""
    lines = [" ".join(_router_word(word) for word in router.command)]
    setup: list[str] = []
    if router.config_flag:
        words = " ".join(config_words(router, "")).strip()
        lines.append(f'{words} "$(dirname "$0")"/{shlex.quote(router.config_name)}')
    else:
        setup = [line for pool in router.pools for line in _url_lines(router, pool)]
        lines += ['"${URLS[@]}"', *([" ".join(map(shlex.quote, router.policy))] if router.policy else [])]
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f"# The router in front of {' and '.join(pool.name for pool in router.pools)}.",
            *(f"# {one_line(note)}" for note in router.notes),
            "set -euof pipefail",
            *([] if router.config_flag else [f"PORT=${{PORT:-{router.port}}}", *_pair_line(router)]),
            *setup,
            "exec " + " \\\n  ".join(lines),
            "",
        ]
    )


def _router_word(word: str) -> str:
    return '"${PORT}"' if word == "{port}" else shlex.quote(word)


def _pair_line(router: RouterSpec) -> list[str]:
    """Words of the router before any URL."""
    roles = [pool.role for pool in router.pools]
    before = url_words(router, {role: [] for role in roles})
    return [f"URLS=({' '.join(map(shlex.quote, before))})"]


def _url_lines(router: RouterSpec, pool: LaunchSpec) -> list[str]:
    """Lines that add the URLs of one pool."""
    name = "WORKERS" if pool.role is Role.MIXED else pool.role.value.upper()
    words = shlex.quote(f"set {name} to the URLs of the {pool.replicas} replicas of {pool.name}, spaces between them")
    lines = [f'if [ -z "${{{name}:-}}" ]; then echo {words} >&2; exit 2; fi']
    if pool.role is Role.MIXED:
        return [*lines, f'for url in ${{{name}}}; do URLS+=("${{url}}"); done']
    one = {role: ["URL"] if role is pool.role else [] for role in (Role.PREFILL, Role.DECODE)}
    none: dict[Role, list[str]] = {role: [] for role in one}
    added = url_words(router, one)[len(url_words(router, none)) :]
    flag = " ".join('"${url}"' if word == "URL" else shlex.quote(word) for word in added)
    return [*lines, f"for url in ${{{name}}}; do URLS+=({flag}); done"]


def model_variable(spec: LaunchSpec) -> str:
    """Environment variable of the model of a pool in the Compose file."""
    return f"MODEL_{slug(spec.service).replace('-', '_').upper()}"


def readme(fleet: Fleet, specs: Sequence[LaunchSpec], routers: Sequence[RouterSpec] = ()) -> str:
    """What the files are, how many of each to start, what was promised and how to check it."""
    missing = [
        f"- `{spec.name}`: set `MODEL` (in {COMPOSE_NAME} `{model_variable(spec)}`) to a checkpoint of "
        f"{markdown_text(one_line(spec.checkpoint))}."
        for spec in specs
        if not spec.model
    ]
    notes = [note for spec in specs for note in spec.notes] + [note for router in routers for note in router.notes]
    parts = [
        f"# Launch of {markdown_text(one_line(fleet.name))}",
        "Each script or service starts one replica of a pool on one server. Start as many as the table says; one that "
        "spans servers is started on each of them.",
        pool_table(specs),
        "## Router",
        _router_text(specs, routers),
        *(["## Models to name", "\n".join(missing)] if missing else []),
        *closing_sections(fleet, specs, notes),
    ]
    return "\n\n".join(parts) + "\n"


SOURCES = (
    "Flag names were read in the documentation and source of each engine at the version named; the pages are listed in "
    "`engine_flags.csv` of the planner."
)


def pool_table(
    specs: Sequence[LaunchSpec],
    head: str = "Script and service",
    names: Mapping[str, str] | None = None,
    port: int = 0,
) -> str:
    """The pools as a Markdown table.

    Args:
        specs: of the pools.
        head: of the first column.
        names: of pools in that column by their own name, which stands there where there is none.
        port: of every replica; their own where it is 0.
    """
    rows = [
        f"| {(names or {}).get(spec.name, spec.name)} | {spec.replicas:,} | {spec.gpus} x {spec.sku} "
        f"| {spec.nodes:,} | {markdown_text(spec.engine)} {markdown_text(spec.engine_version)} "
        f"| {spec.router.replace('_', ' ')} | {port or spec.port} |"
        for spec in specs
    ]
    columns = ["Replicas", "GPUs each", "Servers", "Engine", "Router", "Port"]
    rules = "| --- | ---: | --- | ---: | --- | --- | ---: |"
    return "\n".join([f"| {' | '.join([head, *columns])} |", rules, *rows])


def closing_sections(
    fleet: Fleet, specs: Sequence[LaunchSpec], notes: Iterable[str], not_written: str = ""
) -> list[str]:
    """The end of every README: what was promised, how to check it, what is not written, notes, sources."""
    return [
        *_promise_sections(fleet, specs),
        *(["## What is not written", not_written] if not_written else []),
        "## Notes",
        "\n".join(f"- {markdown_text(note)}" for note in dict.fromkeys(notes)),
        SOURCES,
    ]


def _promise_sections(fleet: Fleet, specs: Sequence[LaunchSpec]) -> list[str]:
    return [
        "## What was promised",
        "\n".join([*map(_promises, fleet.deployments), *_divided(fleet)]),
        "## How to check it",
        f"A replica is ready when `curl -f http://SERVER:PORT{specs[0].health_path}` succeeds. Then send the planned "
        "rate with the planned input and output tokens for long enough that the tail shows (p99 needs thousands of "
        "requests), and compare TTFT and TPOT at the client with the targets above.",
    ]


def _divided(fleet: Fleet) -> list[str]:
    """A line for each service that several deployments share, since nothing here divides its traffic."""
    names = [launched.service for launched in fleet.deployments]
    return [
        f"- {markdown_text(one_line(name))} is served by {names.count(name)} deployments, each with an address of its "
        "own: send each the requests and the rate above."
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]


def _router_text(specs: Sequence[LaunchSpec], routers: Sequence[RouterSpec]) -> str:
    """How requests reach the replicas, a line for each deployment."""
    by_deployment = {router.pools[0].deployment: router for router in routers}
    lines = []
    for number in dict.fromkeys(spec.deployment for spec in specs):
        pools = [spec for spec in specs if spec.deployment == number]
        names = " and ".join(f"`{pool.name}`" for pool in pools)
        router = by_deployment.get(number)
        if router is None:
            wanted = "put a load balancer of your own in front" if pools[0].replicas > 1 else "none is needed"
            lines.append(f"- {names}: {wanted} ({pools[0].router.replace('_', ' ')} was planned).")
        elif router.config_flag:
            lines.append(f"- {names}: `{router.name}`; put the addresses of the replicas into `{router.config_name}`.")
        else:
            lines.append(f"- {names}: `{router.name}`, at port {router.port}; it asks for the URLs of the replicas.")
    return "\n".join(lines)


def _promises(launched: LaunchedDeployment) -> str:
    rate = significant(launched.workload.arrivals.rate_per_s)
    targets = ", ".join(
        f"{target.name} of at most {with_unit(target.threshold_s, target.metric)}" for target in launched.slo.targets
    )
    lengths = launched.workload.lengths
    return (
        f"- {markdown_text(one_line(launched.service))}: {rate} requests/s of {significant(lengths.mean_input)} input "
        f"and {significant(lengths.mean_output)} output tokens on average; {targets or 'no latency targets'}."
    )
