"""Text of users' files: every way of packing gives the same text, and what is no text is named."""

from __future__ import annotations

import gzip
import io
import zipfile

import pytest

from planner.core import InputError
from planner.traffic import FileKind, text_of

KIND = FileKind("list", "give a list", 1000, "cut it")
TEXT = "sku,usd\nl4,0.5 €\n"


@pytest.mark.parametrize(
    "content",
    [TEXT, TEXT.encode(), gzip.compress(TEXT.encode(), mtime=0), TEXT.encode("utf-8-sig"), TEXT.encode("utf-16")],
)
def test_text_is_the_same_however_it_is_packed(content: str | bytes) -> None:
    source = io.BytesIO(content) if isinstance(content, bytes) else io.StringIO(content)
    assert text_of(source, "x", KIND) == TEXT


def test_a_small_file_that_unpacks_to_much_is_refused() -> None:
    bomb = gzip.compress(b"a" * 10_000_000, mtime=0)
    kind = KIND._replace(most_bytes=100_000)
    assert len(bomb) < kind.most_bytes
    with pytest.raises(InputError, match=r"list = 'x': is larger than 0\.1 MB. Fix: cut it"):
        text_of(io.BytesIO(bomb), "x", kind)


def test_other_packings_are_named() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.csv", TEXT)
    with pytest.raises(InputError, match=r"is a ZIP archive. Fix: save it as CSV or JSONL"):
        text_of(io.BytesIO(packed.getvalue()), "x", KIND)
    for content, said in ((b"\xff", "is not text"), (b"\x1f\x8bzz", "cannot be read"), (b"a\0b", "is a binary file")):
        with pytest.raises(InputError, match=said):
            text_of(io.BytesIO(content), "x", KIND)
