"""Text of users' files: every way of packing gives the same text, and what is no text is named."""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.core import InputError
from planner.traffic import FileKind, text_of
from planner.traffic.text_files import json_documents, lines_of

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
        (PACKED[:12] + b"\xff" * 9, "cannot be read|is not text"),
        (PACKED[:-8] + b"\0" * 8, "cannot be read"),
        (b"a\0b", "is a binary file"),
    ):
        with pytest.raises(InputError, match=said):
            text_of(io.BytesIO(content), "x", KIND)


@pytest.mark.parametrize("packing", ["plain", "gzip", "zstd"])
def test_long_files_are_read_line_by_line_with_progress(packing: str, tmp_path: Path) -> None:
    """Sixteen thousand times the limit of one document: neither the file nor its text is ever held."""
    line, lines = "x" * 79 + "\n", 200_000
    content = (line * lines).encode()
    if packing == "zstd":
        content = pytest.importorskip("zstandard", reason="the extra zstd is not installed").compress(content)
    (tmp_path / "x").write_bytes(gzip.compress(content, mtime=0) if packing == "gzip" else content)
    del content
    shares = list[float]()
    tracemalloc.start()
    read = sum(found == line for found in lines_of(tmp_path / "x", "x", KIND, shares.append))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert read == lines
    assert shares == sorted(shares) and len(shares) == 2 and 0.0 < shares[0] <= shares[1] <= 1.0
    assert peak < (1_000_000 if packing != "zstd" else 40_000_000)  # a kilobyte of zstd can stand for 33 MB


def test_a_line_of_a_long_file_has_a_limit(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a\n" * 1000 + "b" * 1001)
    with pytest.raises(InputError, match=r"is larger than 0\.001 MB"):
        list(lines_of(tmp_path / "x", "x", KIND))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.tuples(VALUES, st.sampled_from([None, 0, 2])), max_size=5))
def test_documents_are_the_same_over_any_number_of_lines(documents: list[tuple[object, int | None]]) -> None:
    """One a line, or spread over many: what json.dumps wrote comes back in order."""
    text = "\n".join(json.dumps(value, indent=indent) for value, indent in documents)
    assert list(json_documents(io.StringIO(text), "x", KIND)) == [value for value, _ in documents]


@pytest.mark.parametrize(
    ("text", "line"), [('{"a": 1}\n{"a": 2}\n{"a" 3}\n{', 3), ("[1,\n2,\n", 3), ('{"a": "b\n"}', 1)]
)
def test_what_is_no_json_is_said_with_its_line(text: str, line: int) -> None:
    with pytest.raises(InputError, match=rf"line {line} is not JSON"):
        list(json_documents(io.StringIO(text), "x", KIND))
