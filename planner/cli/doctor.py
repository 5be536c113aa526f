"""`planner doctor`: what is installed, what clashes or is missing, and on what the numbers of each SKU rest."""
# ruff: noqa: D301, PLC0415 - a line of \b keeps the examples of a help text as written; imports are late on purpose

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

import planner
from planner.cli import installation
from planner.cli.base import JsonFile, check_outputs, deliver, look_up, sku_called
from planner.core import json_text, plain

if TYPE_CHECKING:
    from planner.core import Table


def doctor(sku: str | None = None, engine: str = "vllm", json_file: JsonFile = None) -> None:
    """Say what is installed, what clashes or is missing, and what the numbers of each SKU rest on.

    \b
    planner doctor
    planner doctor --sku h100-sxm
    planner doctor --json -

    Step times of a SKU are measured, measured in part, or borrowed from a relative. Prices are those that plans take by
    default today.
    """
    import hardware_db
    from planner.core import Report
    from planner.scenario import catalogue

    check_outputs(json_file)
    hardware = hardware_db.load_hardware()
    look_up("--engine", engine, hardware.engines)
    skus = tuple(hardware.skus) if sku is None else (sku_called("--sku", sku, hardware.skus).id,)
    evidence = tuple(catalogue.sku_evidence(hardware, one, engine) for one in skus)
    findings = (*_clashes(), *_missing(), *catalogue.evidence_findings(evidence))
    deliver(
        lambda: Report(
            f"{len(findings)} to look at." if findings else "Nothing to look at: all is well.",
            (_installed_table(), _extras_table(), catalogue.evidence_table(evidence, engine)),
            {"To look at": findings},
        ),
        (json_file, lambda: json_text(plain({"installed": _installed(), "findings": findings, "skus": evidence}))),
    )


def _clashes() -> tuple[str, ...]:
    """Other things called `planner`, each with a remedy."""
    if namesakes := installation.namesakes():
        return tuple(f"{other.words}: {other.fix}" for other in namesakes)
    folders = installation.other_folders()  # which no distribution is known to have put there
    return tuple(f"another package {installation.PACKAGE} lies in {place}: rename it" for place in folders)


def _missing() -> tuple[str, ...]:
    """Requirements that are not there, whose absence stops everything."""
    return tuple(
        f"{name} is required and missing: pip install {name}"
        for name in installation.requirements().get("", ())
        if not installation.installed_version(name)
    )


def _installed() -> dict[str, str]:
    """The planner that runs, its place and its Python."""
    place = str(Path(planner.__file__).parent)
    version = installation.installed_version(installation.DISTRIBUTION)
    return {
        installation.DISTRIBUTION: planner.__version__,
        "installed as": version or "not installed: it runs from its source",
        "package": place,
        "command": installation.command_path() or "not on the PATH; python -m planner.cli is the same",
        "Python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        **{name: installation.installed_version(name) for name in installation.requirements().get("", ())},
    }


def _installed_table() -> Table:
    from planner.core import Table

    return Table("Installed", ("what", "version or place"), tuple(_installed().items()))


def _extras_table() -> Table:
    """Extras, what they are for, and what of them is missing."""
    from planner.core import Table

    rows = []
    for extra, purpose in installation.EXTRAS.items():
        names = installation.requirements().get(extra, ())
        missing = [name for name in names if not installation.installed_version(name)]
        fix = f"pip install '{installation.DISTRIBUTION}[{extra}]'" if missing or not names else ""
        rows.append((extra, purpose, ", ".join(missing) or ("nothing" if names else "not known"), fix))
    return Table("Extras", ("extra", "for", "missing", "how to add it"), tuple(rows))
