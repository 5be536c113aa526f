"""A fleet as shell scripts: per pool one that starts a replica, one per router, and a README in words."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import yaml

from planner.core import number_of
from planner.launch.escaping import one_line, slug
from planner.launch.fleet import Fleet
from planner.launch.readme import README_NAME, bullets, closing_sections, name_text, page, pool_table
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
    model = f"MODEL=${{MODEL:-{spec.model}}}" if spec.model else _model_check(spec)
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
            *(f"# {one_line(text)}" for text in _head_lines(spec)),
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
    check = f'if [ -z "${{ADDRESS:-}}" ]; then echo {words} >&2; exit 2; fi'
    return [check, *(f'export {name}="${{ADDRESS}}"' for name in spec.address_variables)]


def _model_check(spec: LaunchSpec) -> str:
    """The line that stops a script whose user has not said which checkpoint to serve."""
    words = shlex.quote(f"set MODEL to the repository or folder of a checkpoint: {one_line(spec.checkpoint)}")
    return f'if [ -z "${{MODEL:-}}" ]; then echo {words} >&2; exit 2; fi'


def _head_lines(spec: LaunchSpec) -> tuple[str, ...]:
    spans = [f"It spans {spec.servers} servers: run this on each of them."] if spec.servers > 1 else []
    return (
        f"One replica of {spec.name}: {number_of(spec.gpus, 'GPU')} {spec.sku}, {spec.engine} {spec.engine_version}.",
        *spans,
        f"The plan runs {number_of(spec.replicas, 'replica')} of it on {number_of(spec.nodes, 'server')}.",
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
    own_url = {role: ["URL"] if role is pool.role else [] for role in (Role.PREFILL, Role.DECODE)}
    no_url: dict[Role, list[str]] = {role: [] for role in own_url}
    words_of_url = url_words(router, own_url)[len(url_words(router, no_url)) :]
    flag = " ".join('"${url}"' if word == "URL" else shlex.quote(word) for word in words_of_url)
    return [*lines, f"for url in ${{{name}}}; do URLS+=({flag}); done"]


def model_variable(spec: LaunchSpec) -> str:
    """Environment variable of the model of a pool in the Compose file."""
    return f"MODEL_{slug(spec.service).replace('-', '_').upper()}"


def readme(fleet: Fleet, specs: Sequence[LaunchSpec], routers: Sequence[RouterSpec] = ()) -> str:
    """What the files are, how many of each to start, what the targets are and how to check them."""
    unnamed_models = [
        f"`{spec.name}`: set `MODEL` (in {COMPOSE_NAME} `{model_variable(spec)}`) to a checkpoint of "
        f"{name_text(spec.checkpoint)}."
        for spec in specs
        if not spec.model
    ]
    notes = [note for spec in specs for note in spec.notes] + [note for router in routers for note in router.notes]
    sections = [
        "Each script or service starts one replica of a pool on one server. Start as many as the table says; one that "
        "spans servers is started on each of them.",
        pool_table(specs),
        "## Router",
        _router_text(specs, routers),
        *(["## Models to name", bullets(unnamed_models)] if unnamed_models else []),
        *closing_sections(fleet, specs, notes),
    ]
    return page(f"Launch of {name_text(fleet.name)}", sections)


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
