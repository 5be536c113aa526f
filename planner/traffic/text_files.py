"""Text that users bring: a path or an open file, packed or not, within a size, refused in one line.

What the text means is the business of those who read it; here it only becomes text.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from planner.core import InputError

Source = str | Path | IO[str] | IO[bytes]
"""A path (also as a string), or an open file."""
_MAGIC = {b"PK\x03\x04": "a ZIP archive", b"PAR1": "a Parquet file"}
_GZIP, _ZSTD = b"\x1f\x8b", b"(\xb5/\xfd"


class FileKind(NamedTuple):
    """The kind of file expected, for the words of errors.

    Attributes:
        field: what the file is to the user, such as "trace".
        fix: what to give instead of something else.
        most_bytes: largest size, also after unpacking [bytes].
        shorten: how to make it smaller.
        save: formats to save it in where it is packed in another way.
    """

    field: str
    fix: str
    most_bytes: int
    shorten: str
    save: str = "CSV or JSONL"


def name_of(source: Source, otherwise: str) -> str:
    """Name of a source in errors: its file name where it has one."""
    return Path(source).name if isinstance(source, str | Path) else str(getattr(source, "name", otherwise))


def text_of(source: Source, name: str, kind: FileKind) -> str:
    r"""The whole text of a source, gzip unpacked, decoded, without a byte-order mark.

    Raises InputError for a file that is missing, too large (also after unpacking), packed otherwise, binary or empty.

    >>> text_of(io.BytesIO(gzip.compress(b"a,b\n")), "x.csv.gz", FileKind("table", "give a table", 1000, "cut it"))
    'a,b\n'
    """
    try:
        return _text(source, name, kind)
    except UnicodeDecodeError as error:
        raise InputError(kind.field, name, f"is not text ({error.reason})", "save it as UTF-8 text") from None
    except (EOFError, zlib.error, OSError) as error:
        fix = "check the path, or compress it again"
        raise InputError(kind.field, name, f"cannot be read ({error})", fix) from None


def _text(source: Source, name: str, kind: FileKind) -> str:
    if isinstance(source, str | Path):
        content: str | bytes = _path_content(Path(source), name, kind)
    else:
        content = source.read(kind.most_bytes + 1)
    if len(content) > kind.most_bytes:
        raise _too_big(name, kind)
    if isinstance(content, bytes):
        content = _decoded(_unpacked(content, name, kind), name, kind)
    if "\0" in content:
        raise InputError(kind.field, name, "is a binary file", kind.fix)
    if not content.strip("\ufeff \t\r\n"):
        raise InputError(kind.field, name, "is empty", kind.fix)
    return content.removeprefix("\ufeff")


def _path_content(path: Path, name: str, kind: FileKind) -> bytes:
    try:
        exists = path.is_file()
    except ValueError:  # a null character in the path
        exists = False
    if not exists:
        raise InputError(kind.field, str(path), "no such file", f"give the path of a {kind.field}")
    if path.stat().st_size > kind.most_bytes:
        raise _too_big(name, kind)
    return path.read_bytes()


def _unpacked(content: bytes, name: str, kind: FileKind) -> bytes:
    """Content without gzip or zstd; one that expands beyond the limit is refused on the way."""
    if not content.startswith((_GZIP, _ZSTD)):
        return content
    if content.startswith(_GZIP):
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            content = packed.read(kind.most_bytes + 1)
    else:
        content = _without_zstd(content, name, kind)
    if len(content) > kind.most_bytes:
        raise _too_big(name, kind)
    return content


def _without_zstd(content: bytes, name: str, kind: FileKind) -> bytes:
    try:
        import zstandard  # noqa: PLC0415 - optional
    except ImportError:
        fix = f"pip install zstandard, or save it as {kind.save}, plain or gzip"
        raise InputError(kind.field, name, "is compressed by zstd, and zstandard is not installed", fix) from None
    try:
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(content), read_across_frames=True) as packed:
            found = bytes(packed.read(kind.most_bytes + 1))
        rest = content if len(found) <= kind.most_bytes else b""
        while rest:  # the stream does not say that its end is missing
            frame = zstandard.ZstdDecompressor().decompressobj()
            frame.decompress(rest)
            if not frame.eof:
                raise EOFError("it ends in the middle")
            rest = frame.unused_data
        return found
    except zstandard.ZstdError as error:
        fix = "check the path, or compress it again"
        raise InputError(kind.field, name, f"cannot be read ({error})", fix) from None


def _decoded(content: bytes, name: str, kind: FileKind) -> str:
    for magic, words in _MAGIC.items():
        if content.startswith(magic):
            raise InputError(kind.field, name, f"is {words}", f"save it as {kind.save}, plain or gzip")
    wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    return content.decode("utf-16" if wide else "utf-8-sig")


def _too_big(name: str, kind: FileKind) -> InputError:
    return InputError(kind.field, name, f"is larger than {kind.most_bytes / 1e6:g} MB", kind.shorten)


def json_documents(text: str, name: str, kind: FileKind) -> Iterator[object]:
    r"""JSON documents that stand one after another, as in JSON lines, each as it is read.

    Raises InputError for what is not JSON, and for JSON that Python cannot hold.

    >>> list(json_documents('{"a": 1}\n[2]', "x.jsonl", FileKind("table", "give a table", 1000, "cut it")))
    [{'a': 1}, [2]]
    """
    decoder, blank, place = json.JSONDecoder(), re.compile(r"\s*"), 0
    while True:
        match = blank.match(text, place)
        place = match.end() if match else place
        if place >= len(text):
            return
        try:
            document, place = decoder.raw_decode(text, place)
        except json.JSONDecodeError as error:
            bound = f"line {error.lineno} is not JSON ({error.msg})"
            raise InputError(kind.field, name, bound, "give JSON, or one JSON object a line") from None
        except (ValueError, RecursionError) as error:
            bound = f"holds JSON that cannot be read ({type(error).__name__})"
            raise InputError(kind.field, name, bound, kind.fix) from None
        yield document
