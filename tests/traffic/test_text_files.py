"""Text of users' files: every way of packing gives the same text, and what is no text is named."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path

import pytest

from planner.core import InputError
from planner.traffic import FileKind, text_of

KIND = FileKind("list", "give a list", 1000, "cut it")
TEXT = "sku,usd\nl4,0.5 €\n"
PACKED = gzip.compress(TEXT.encode(), mtime=0)


@pytest.mark.parametrize(
    "content",
    [TEXT, TEXT.encode(), gzip.compress(TEXT.encode(), mtime=0), TEXT.encode("utf-8-sig"), TEXT.encode("utf-16")],
)
def test_text_is_the_same_however_it_is_packed(content: str | bytes) -> None:
    source = io.BytesIO(content) if isinstance(content, bytes) else io.StringIO(content)
    assert text_of(source, "x", KIND) == TEXT


def test_paths_are_read_and_unpacked_whatever_they_are_called(tmp_path: Path) -> None:
    for name, content in (("a.csv", TEXT.encode()), ("a.csv.gz", PACKED), ("misnamed.json", PACKED)):
        (tmp_path / name).write_bytes(content)
        assert text_of(tmp_path / name, name, KIND) == text_of(str(tmp_path / name), name, KIND) == TEXT


def test_files_beyond_the_limit_are_refused_unread(tmp_path: Path) -> None:
    large = TEXT.encode() * 100
    (tmp_path / "large.csv").write_bytes(large)
    squeezed = gzip.compress(large, mtime=0)
    assert len(squeezed) < KIND.most_bytes
    for source in (tmp_path / "large.csv", io.BytesIO(large), io.StringIO(large.decode()), io.BytesIO(squeezed)):
        with pytest.raises(InputError, match=r"list = 'x': is larger than 0\.001 MB. Fix: cut it"):
            text_of(source, "x", KIND)


@pytest.mark.parametrize("path", ["absent.csv", ".", "a\0b", "x" * 5000])
def test_paths_that_are_no_file(path: str) -> None:
    with pytest.raises(InputError, match=r"no such file|cannot be read .*File name too long"):
        text_of(path, "x", KIND)


def test_a_bomb_is_unpacked_no_further_than_the_limit() -> None:
    """A megabyte that expands to a gigabyte."""
    bomb = gzip.compress(b"a" * 10_000_000, mtime=0) * 100
    with pytest.raises(InputError, match=r"is larger than 100 MB"):
        text_of(io.BytesIO(bomb), "x", KIND._replace(most_bytes=100_000_000))


def test_other_packings_are_named() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.csv", TEXT)
    with pytest.raises(InputError, match=r"is a ZIP archive. Fix: save it as CSV or JSONL"):
        text_of(io.BytesIO(packed.getvalue()), "x", KIND)
    for content, said in (
        (b"PAR1\x15\x04", "is a Parquet file"),
        (b"\xff", "is not text"),
        (b"\x89PNG\r\n\x1a\n\0\0", r"is not text \(invalid start byte"),
        (b"\x1f\x8bzz", "cannot be read"),
        (PACKED[:-12], "cannot be read .*compress it again"),
        (PACKED[:12] + b"\xff" * 9, "cannot be read"),
        (PACKED[:-8] + b"\0" * 8, "cannot be read"),
        (b"a\0b", "is a binary file"),
    ):
        with pytest.raises(InputError, match=said):
            text_of(io.BytesIO(content), "x", KIND)
