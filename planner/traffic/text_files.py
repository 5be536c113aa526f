"""Text that users bring: a path or an open file, packed or not, within a size, refused in one line.

What the text means is the business of those who read it; here it only becomes text.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

from planner.core import InputError

Progress = Callable[[float], None]
"""Told the share of a file that was read."""
Source = str | Path | IO[str] | IO[bytes]
"""A path (also as a string), or an open file."""
_MAGIC = {b"PK\x03\x04": "a ZIP archive", b"PAR1": "a Parquet file"}
_GZIP, _ZSTD = b"\x1f\x8b", b"(\xb5/\xfd"
_CHUNK_BYTES, _ZSTD_BYTES = 65_536, 1024
"""Read at once; of zstd less, since four bytes can stand for 128 kB (RFC 8878, section 3.1.1.2: RLE blocks)."""
_LINES_A_STEP = 100_000
"""Lines between two reports of progress."""


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
    r"""The whole text of a source, gzip and zstd unpacked, decoded, without a byte-order mark.

    Raises InputError for a file that is missing, too large (also after unpacking), packed otherwise, binary or empty.

    >>> text_of(io.BytesIO(gzip.compress(b"a,b\n")), "x.csv.gz", FileKind("table", "give a table", 1000, "cut it"))
    'a,b\n'
    """
    return "".join(_lines(source, name, kind, kind.most_bytes, None))


def lines_of(source: Source, name: str, kind: FileKind, progress: Progress | None = None) -> Iterator[str]:
    r"""The lines of `text_of` one by one, as they are read and unpacked: no more than one is held at a time.

    A path may be of any size as long as each line is within that of `kind`; an open file is as large as for `text_of`.
    `progress` gets the share of a path that was read, in [0, 1], now and then. Raises InputError as `text_of`.

    >>> list(lines_of(io.BytesIO(b"a,b\n1,2"), "x.csv", FileKind("table", "give a table", 1000, "cut it")))
    ['a,b\n', '1,2']
    """
    most_bytes = math.inf if isinstance(source, str | Path) else kind.most_bytes
    return _lines(source, name, kind, most_bytes, progress)


def _lines(source: Source, name: str, kind: FileKind, most_bytes: float, progress: Progress | None) -> Iterator[str]:
    read, number, packed_bytes, blank = 0, 0, 0, True
    try:
        if isinstance(source, str | Path):
            packed_bytes = _size_of(Path(source), name, kind, most_bytes)
        with Path(source).open("rb") if isinstance(source, str | Path) else nullcontext(source) as raw:
            text = _decoded(raw, name, kind)
            while line := text.readline(kind.most_bytes + 1):
                read, number = read + len(line), number + 1
                if len(line) > kind.most_bytes or read > most_bytes:
                    raise _too_big(name, kind)
                if "\0" in line:
                    raise InputError(kind.field, name, "is a binary file", kind.fix)
                blank = blank and not line.strip("\ufeff \t\r\n")
                yield line if number > 1 else line.removeprefix("\ufeff")
                if progress and packed_bytes and number % _LINES_A_STEP == 0:
                    progress(raw.tell() / packed_bytes)
    except UnicodeDecodeError as error:
        raise InputError(kind.field, name, f"is not text ({error.reason})", "save it as UTF-8 text") from None
    except (EOFError, zlib.error, OSError) as error:
        raise InputError(kind.field, name, f"cannot be read ({error})", "check it, or compress it again") from None
    if blank:
        raise InputError(kind.field, name, "is empty", kind.fix)


def _size_of(path: Path, name: str, kind: FileKind, most_bytes: float) -> int:
    """Bytes of a file as it stands. Raises InputError where it is missing or too large."""
    if not path.is_file():
        raise InputError(kind.field, str(path), "no such file", f"give the path of a {kind.field}")
    if (size := path.stat().st_size) > most_bytes:
        raise _too_big(name, kind)
    return size


class _Chunks(io.RawIOBase):
    """Chunks of bytes as a stream."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - of io: whatever can be written into
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        wanted = memoryview(buffer)
        part, self._rest = self._rest[: len(wanted)], self._rest[len(wanted) :]
        wanted[: len(part)] = part
        return len(part)


def _decoded(raw: IO[Any], name: str, kind: FileKind) -> IO[str]:
    """A stream of text from an open file, unpacked on the way."""
    if isinstance(raw.read(0), str):
        return io.StringIO(raw.read(kind.most_bytes + 1), newline="")
    content: io.BufferedReader | gzip.GzipFile
    content = io.BufferedReader(_Chunks(iter(lambda: raw.read(_CHUNK_BYTES), b"")))
    if content.peek(4).startswith(_GZIP):
        content = gzip.GzipFile(fileobj=content)
    elif content.peek(4).startswith(_ZSTD):
        content = io.BufferedReader(_Chunks(_without_zstd(content, name, kind)))
    head = content.peek(4)
    for magic, words in _MAGIC.items():
        if head.startswith(magic):
            raise InputError(kind.field, name, f"is {words}", f"save it as {kind.save}, plain, gzip or zstd")
    wide = head.startswith((b"\xff\xfe", b"\xfe\xff"))
    return io.TextIOWrapper(content, "utf-16" if wide else "utf-8-sig", newline="")


def _without_zstd(packed: IO[bytes], name: str, kind: FileKind) -> Iterator[bytes]:
    """What frames of zstd hold, one after another. Raises EOFError where the last one is cut off."""
    try:
        import zstandard  # noqa: PLC0415 - optional
    except ImportError:
        fix = f"pip install zstandard, or save it as {kind.save}, plain or gzip"
        raise InputError(kind.field, name, "is compressed by zstd, and zstandard is not installed", fix) from None
    frame = zstandard.ZstdDecompressor().decompressobj()
    try:
        while rest := packed.read(_ZSTD_BYTES):
            while rest:
                frame = zstandard.ZstdDecompressor().decompressobj() if frame.eof else frame
                yield frame.decompress(rest)
                rest = frame.unused_data
    except zstandard.ZstdError as error:
        raise OSError(str(error)) from None
    if not frame.eof:
        raise EOFError("it ends in the middle")


def _too_big(name: str, kind: FileKind) -> InputError:
    return InputError(kind.field, name, f"is larger than {kind.most_bytes / 1e6:g} MB", kind.shorten)


def json_documents(lines: Iterable[str], name: str, kind: FileKind) -> Iterator[object]:
    r"""JSON documents that stand one after another, as in JSON lines, each as it is read.

    Raises InputError for what is not JSON, for JSON that Python cannot hold, and for one document beyond the size of
    `kind`.

    >>> list(json_documents(['{"a":\n', '1}\n', "[2]"], "x.jsonl", FileKind("table", "give a table", 1000, "cut it")))
    [{'a': 1}, [2]]
    """
    decoder, written = json.JSONDecoder(), re.compile(r"\S")
    text, done = "", 0  # what is read and in no document yet, and the lines before it
    waiting, enough = list[str](), 0  # lines read since, and characters until it is tried again
    for line in chain(lines, (None,)):
        if line is not None:
            waiting.append(line)
            enough -= len(line)
            if enough > 0:
                continue
        text, place, enough = text + "".join(waiting), 0, 0
        waiting.clear()
        while start := written.search(text, place):
            try:
                document, place = decoder.raw_decode(text, start.start())
            except json.JSONDecodeError as error:
                if line is None or text[error.pos + 1 :].strip():
                    bound = f"line {done + error.lineno} is not JSON ({error.msg})"
                    raise InputError(kind.field, name, bound, "give JSON, or one JSON object a line") from None
                enough = len(text) - place  # twice as much: so often tried, a document costs twice its length
                break
            except (ValueError, RecursionError) as error:
                bound = f"holds JSON that cannot be read ({type(error).__name__})"
                raise InputError(kind.field, name, bound, kind.fix) from None
            yield document
        done, text = done + text.count("\n", 0, place), text[place:]
        if len(text) > kind.most_bytes:
            raise _too_big(name, kind)
