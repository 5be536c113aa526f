"""Files that are written whole or not at all: under another name beside their place, then renamed.

`write_text`, `write_texts` and `require_writable` are for files that a user names: they say why one cannot be written.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from datetime import date
from pathlib import Path

from planner.core.errors import InputError

MOST_WRITERS = 1000
"""Files of one folder that are under way at once, those left by processes that were killed among them. A choice."""


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file so that whoever reads it finds the old content or the new one, never a part.

    Args:
        path: of the file; a link is followed, and what is no plain file (a pipe, a terminal) is written to directly.
        content: bytes, or text that is written as UTF-8.

    Raises OSError when it cannot be written, and leaves what was there.
    """
    write_all_whole({path: content})


def write_all_whole(files: Mapping[str | Path, str | bytes]) -> None:
    """Write several files, as `write_whole` each: none takes its place before all of them are on the disk."""
    staged: list[tuple[Path, Path]] = []
    try:
        for path, content in files.items():
            place = Path(path).resolve()
            if place.exists() and not place.is_file():
                place.write_bytes(_encoded(content))
                continue
            temporary = _new_file(place.parent)
            staged.append((temporary, place))
            temporary.write_bytes(_encoded(content))
            if place.exists():
                shutil.copymode(place, temporary)
        while staged:
            temporary, place = staged[0]
            temporary.replace(place)
            staged.pop(0)
    finally:
        for temporary, _ in staged:
            with contextlib.suppress(OSError):
                temporary.unlink()


def written_on(file: Path) -> date | None:
    """The day a file was last written on; of what is no file, or has a time that no calendar has, None."""
    try:
        return date.fromtimestamp(file.stat().st_mtime) if file.is_file() else None
    except (ValueError, OverflowError):
        return None


def _encoded(content: str | bytes) -> bytes:
    return content.encode("utf-8") if isinstance(content, str) else content


def _new_file(folder: Path) -> Path:
    """An empty file that was not there: names are tried in turn, and only one process gets each."""
    for number in range(MOST_WRITERS):
        path = folder / f".writing-{number}"
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(f"{folder} holds {MOST_WRITERS} files named .writing-N: remove them")


# --- files that a user names ----------------------------------------------------------------------------------------


def write_text(path: str | Path, text: str | bytes) -> None:
    """Write text (as UTF-8) or bytes to a file, whole or not at all. Raises InputError when it cannot be written."""
    write_texts({path: text})


def write_texts(texts: Mapping[str | Path, str | bytes]) -> None:
    """Write texts to files, as `write_text` each: all of them, or none."""
    for path in texts:
        require_writable(path)
    try:
        write_all_whole(texts)
    except (OSError, ValueError) as error:
        reason, names = getattr(error, "strerror", None) or str(error), ", ".join(map(str, texts))
        raise InputError("output file", names, f"cannot be written: {reason}", "choose another place") from None


def require_writable(path: str | Path) -> None:
    """Raise InputError when a file cannot stand at `path`: before the work is done, not after it."""
    place = Path(path)
    try:
        is_folder, has_parent = place.is_dir(), place.parent.is_dir()
    except (OSError, ValueError) as error:
        raise InputError("output file", str(path), f"is no file name ({error})", "choose another name") from None
    if is_folder:
        raise InputError("output file", str(path), "is a folder", "add a file name")
    if not has_parent:
        raise InputError("output file", str(path), f"there is no folder {place.parent}", "create it, or choose another")
