"""What the image of the web app holds beside its base, as CycloneDX: ``make sbom``, or ``python -m docs.sbom FILE``.

Components are the lines of ``requirements.txt``, which the image is built from: name, version, package URL, and SHA-256
of the files of that release, one of which pip installed. Neither licences nor the packages of the base image are in it.

Sources: cyclonedx.org/docs/1.6/json; github.com/package-url/purl-spec (type pypi: lower case, ``-`` for ``_``).
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def component(name: str, version: str, digests: list[str]) -> dict[str, object]:
    """One package of PyPI."""
    plain = re.sub(r"[-_.]+", "-", name).lower()
    files = {"alg": "SHA-256"}
    return {
        "type": "library",
        "name": name,
        "version": version,
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
    found = []
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
