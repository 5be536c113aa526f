"""What the image of the web app holds, as CycloneDX: ``make sbom``, or ``python -m docs.sbom FILE``.

Components are the base image by its digest, and the lines of ``requirements.txt``, which the image is built from: name,
version, licence, package URL, and SHA-256 of the files of that release, one of which pip installed. Licences are those
that the installed packages state of themselves, so they must be installed here too. What the base image holds is listed
by its publisher.

Sources: cyclonedx.org/docs/1.6/json; github.com/package-url/purl-spec (types docker, and pypi: lower case, ``-`` for
``_``); packaging.python.org/en/latest/specifications/core-metadata (an expression; before 2024 a text or classifiers).
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def licences(name: str) -> list[dict[str, object]]:
    """What an installed package says of its licence: an expression, else a line of text, else its classifiers."""
    about = metadata.metadata(name).json
    if "license_expression" in about:
        return [{"expression": about["license_expression"]}]
    text = str(about.get("license", ""))
    classifiers = [line.rpartition(" :: ")[2] for line in about.get("classifier", ()) if line.startswith("License ::")]
    return [{"license": {"name": line}} for line in ([text] if text and "\n" not in text else classifiers)]


def base() -> dict[str, object]:
    """The image that the Dockerfile builds on."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    name, tag, digest = re.search(r"^ARG PYTHON=(\w+):(\S+)@sha256:(\w{64})$", text, re.M).groups()  # type: ignore[union-attr]
    purl = f"pkg:docker/{name}@sha256:{digest}?tag={tag}"
    hashes = [{"alg": "SHA-256", "content": digest}]
    return {"type": "container", "name": name, "version": tag, "bom-ref": purl, "purl": purl, "hashes": hashes}


def component(name: str, version: str, digests: list[str]) -> dict[str, object]:
    """One package of PyPI."""
    plain = re.sub(r"[-_.]+", "-", name).lower()
    files = {"alg": "SHA-256"}
    return {
        "type": "library",
        "name": name,
        "version": version,
        "licenses": licences(name),
        "bom-ref": f"pkg:pypi/{plain}@{version}",
        "purl": f"pkg:pypi/{plain}@{version}",
        "externalReferences": [
            {
                "type": "distribution",
                "url": f"https://pypi.org/project/{plain}/{version}/",
                "hashes": [files | {"content": digest} for digest in digests],
            }
        ],
    }


def document() -> dict[str, object]:
    """The list as a document, the same whenever it is made."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    entries = re.split(r"^(?=[A-Za-z])", (ROOT / "requirements.txt").read_text(encoding="utf-8"), flags=re.M)[1:]
    found = [base()]
    for entry in entries:
        name, version = re.match(r"([\w.-]+)==([^\s;]+)", entry).groups()  # type: ignore[union-attr]
        found.append(component(name, version, re.findall(r"sha256:([0-9a-f]{64})", entry)))
    about = {"type": "application", "name": project["name"], "version": project["version"]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": about},
        "components": found,
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(document(), indent=1) + "\n", encoding="utf-8")
