"""A file is there whole, old or new, whatever happens while it is written."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from planner.core import InputError, json_text, write_all_whole, write_text, write_whole


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_write_that_breaks_off_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full, or the person loses patience, after the first bytes."""
    path = tmp_path / "plan.json"
    path.write_text("old", encoding="utf-8")
    written = Path.write_bytes

    for broken in (OSError(28, "No space left on device"), KeyboardInterrupt()):

        def breaks_off(place: Path, content: bytes, broken: BaseException = broken) -> int:
            written(place, content[:1])
            raise broken

        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", breaks_off)
            with pytest.raises(type(broken)):
                write_whole(path, "new and longer")
        assert path.read_text(encoding="utf-8") == "old"
        assert _names(tmp_path) == ["plan.json"]


def test_of_several_files_none_appears_where_one_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        write_all_whole({tmp_path / "a": "a", tmp_path / "missing" / "b": "b"})
    assert _names(tmp_path) == []


def test_modes_are_those_of_a_file_that_is_opened(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        write_whole(tmp_path / "new", "x")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    (tmp_path / "new").chmod(0o600)
    write_whole(tmp_path / "new", "y")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600


def test_links_are_followed_and_devices_written_to(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text(encoding="utf-8") == "new"
    write_whole(os.devnull, "gone")
    assert not Path(os.devnull).is_file()


def test_files_are_written_as_utf8(tmp_path: Path) -> None:
    write_text(tmp_path / "a.json", json_text({"a": [1, None]}))
    write_text(tmp_path / "b.md", "≤ 1 s\n")
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"a": [1, None]}
    assert (tmp_path / "b.md").read_bytes().decode("utf-8") == "≤ 1 s\n"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("missing/x.json", r"output file = '.*': there is no folder .*missing\. Fix: create it"),
        (".", r"output file = '.*': is a folder\. Fix: add a file name"),
        ("a\0b", r"output file = '.*': .*(is no file name|cannot be written).*Fix: choose another"),
        ("x" * 300, r"output file = '.*': .*(is no file name|cannot be written).*Fix: choose another"),
    ],
)
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, name: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        write_text(str(tmp_path / name) if name != "." else str(tmp_path), "text")
