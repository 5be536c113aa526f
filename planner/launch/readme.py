"""What the READMEs of all targets share: the page, the table of pools, and the sections at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from planner.core import markdown_text, significant, with_unit
from planner.launch.escaping import one_line
from planner.launch.fleet import Fleet, LaunchedDeployment
from planner.launch.placement import place_replicas, replicas_of, server_numbers
from planner.launch.spec import FIRST_PORT, LaunchSpec

README_NAME = "README.md"
SOURCES = (
    "Flag names were read in the documentation and source of each engine at the version named; the pages are listed in "
    "`engine_flags.csv` of the planner."
)


def page(title: str, sections: Iterable[str]) -> str:
    """A README: a title, and sections with blank lines between."""
    return "\n\n".join([f"# {title}", *sections]) + "\n"


def name_text(name: str) -> str:
    """A name of the user's in Markdown: on one line, and shown as it is."""
    return markdown_text(one_line(name))


def bullets(lines: Iterable[str]) -> str:
    """Lines as a list, each once."""
    return "\n".join(f"- {line}" for line in dict.fromkeys(lines))


def markdown_rows(head: str, rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table: its head (headings and alignment, two lines) and its rows."""
    return "\n".join([head, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def pool_table(
    specs: Sequence[LaunchSpec],
    head: str = "Pool",
    names: Mapping[str, str] | None = None,
    port: int = 0,
    servers: Mapping[str, str] | None = None,
) -> str:
    """The pools as a Markdown table.

    Args:
        specs: of the pools.
        head: of the first column.
        names: of pools in that column by their own name, which stands there where there is none.
        port: of every replica; 0: each has its own.
        servers: that pools run on, by their names; None: how many a replica spans.
    """
    places = "Servers each" if servers is None else "On servers"
    columns = f"| {head} | Replicas | GPUs each | {places} | Engine | Router | Port |"
    return markdown_rows(
        f"{columns}\n| --- | ---: | --- | ---: | --- | --- | ---: |",
        (
            (
                (names or {}).get(spec.name, spec.name),
                f"{spec.replicas:,}",
                f"{spec.gpus} x {spec.sku}",
                spec.servers if servers is None else servers[spec.name],
                f"{markdown_text(spec.engine)} {markdown_text(spec.engine_version)}",
                spec.router.replace("_", " "),
                port or f"from {FIRST_PORT}",
            )
            for spec in specs
        ),
    )


def closing_sections(
    fleet: Fleet, specs: Sequence[LaunchSpec], notes: Iterable[str], not_written: str = ""
) -> list[str]:
    """The end of a README: the targets, how to check them, what is not written, notes, sources."""
    return [
        "## What was promised",
        "\n".join(map(_target_line, fleet.deployments)),
        *_loss_parts(fleet, specs),
        *_checkpoint_parts(specs),
        "## How to check it",
        f"A replica is ready when `curl -f http://SERVER:PORT{specs[0].health_path}` succeeds. Then send the planned "
        "rate with the planned input and output tokens for long enough that the tail shows (p99 needs thousands of "
        "requests), and compare TTFT and TPOT at the client with the targets above.",
        *(["## What is not written", not_written] if not_written else []),
        "## Notes",
        bullets(map(markdown_text, dict.fromkeys(notes))),
        SOURCES,
    ]


def _loss_parts(fleet: Fleet, specs: Sequence[LaunchSpec]) -> list[str]:
    """What the loss of a server takes, where the plan counts on one; nothing where it does not."""
    if not fleet.survives_node_loss:
        return []
    most: dict[str, int] = {}
    replicas = place_replicas(specs)
    for server in server_numbers(replicas):
        for spec in specs:
            here = sum(server in replica.servers for replica in replicas_of(replicas, spec))
            most[spec.name] = max(most.get(spec.name, 0), here)
    held = ", ".join(f"{most[spec.name]} of the {spec.replicas:,} replicas of {spec.name}" for spec in specs)
    return [
        "## When a server is lost",
        f"Every target holds without any one server, as long as none has more than {held}: keep the replicas of a pool "
        "apart wherever they are started again. A router is one process: while it is down with its server nothing is "
        "served, and requests under way on a lost replica fail. Both are outside of what was promised.",
    ]


def _checkpoint_parts(specs: Sequence[LaunchSpec]) -> list[str]:
    """Which repositories are served, and what to change for a fine-tune; nothing where the user names all."""
    models = {spec.model for spec in specs if spec.model}
    if not models:
        return []
    names = ", ".join(map(name_text, sorted(models)))
    return [
        "## What is served",
        f"{names}. To serve a fine-tune of it, or a copy of your own, put that repository or folder in place of this "
        "name wherever it stands in these files; it has to have the format that was planned for.",
    ]


def _target_line(launched: LaunchedDeployment) -> str:
    rate = significant(launched.workload.arrivals.rate_per_s)
    targets = ", ".join(
        f"{target.name} of at most {with_unit(target.threshold_s, target.metric)}" for target in launched.slo.targets
    )
    lengths = launched.workload.lengths
    beside = "; image tokens are among them, for which benchmarks send text" if lengths.has_images else ""
    return (
        f"- {name_text(launched.service)}: {rate} requests/s of {significant(lengths.mean_input)} input "
        f"and {significant(lengths.mean_output)} output tokens on average{beside}; {targets or 'no latency targets'}."
    )
