"""Damage to a seed: nodes of a tree replaced, dropped, doubled and buried; bytes of a text replaced, cut and repeated.

A mutation is plain numbers, so that hypothesis can shrink it, and a long run can draw it from any source of chance.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple


class Mutation(NamedTuple):
    """One change.

    Attributes:
        place: which node, cell or position, modulo how many there are.
        action: what is done there, modulo how many changes there are.
        value: which hostile value is put there, modulo how many there are.
    """

    place: int
    action: int
    value: int

    @classmethod
    def drawn(cls, chance: random.Random) -> Mutation:
        """One at random."""
        return cls(chance.randrange(1 << 20), chance.randrange(1 << 8), chance.randrange(1 << 16))


NUMBERS = (
    *("0", "-1", "1", "2", "3", "-0.0", "0.5", "1.5", "1e-320", "1e-9", "1e9", "1e12", "1e17", "1e18", "1e100"),
    "1e308",
    *("1e400", "-1e400", "NaN", "Infinity", "-Infinity", "4294967296", "9223372036854775807", "9223372036854775808"),
    *("-9223372036854775809", "18446744073709551616", "1" + "0" * 400, "-1" + "0" * 310, "7" * 5000, "123456789012"),
    *("1048576", "1000000", "65", "2147483648", "0.999999", "1e-300"),
)
"""Numbers as JSON writes them, and what Python's reader takes for numbers besides."""
WORDS = (
    *("", " ", "\0", "a\0b", "\n", "\ud800", "\ufeff", "\u2028", "x" * 5000),
    *("../../etc/passwd", "/etc/passwd", "~root", "nan", "inf", "-inf", "1e400", "-1", "0", "1_000", "0x10"),
    *("\uff11\uff12", "\u00b2", "\u0663", "True", "none"),
    *("2026-13-45", "9999-12-31T23:59:59+00:00", "0001-01-01T00:00:00+23:59", "2026-11-22", "24:00:00", "1" * 5000),
    *("{count}", "{0.__class__}", "%s%n", "$(id)", "<script>alert(1)</script>", "=1+1", "hf:../../x", "..", "."),
    *("a/b", "a\\b"),
    *("\U0001f642", "e\u0301" * 200, "(" * 500, "[" * 500, "{" * 500, "h100-sxm", "vllm", "fp8", "bf16"),
    *("*", "&a", "!!python/object/apply:os.system [id]", "z.", "z.eJw", "/dev/zero", "con", "main", "llama-3.1-8b"),
)
"""Texts that something takes for a number, a path, a date, a format, code, or nothing."""
SHAPES = (
    *("null", "true", "false", "[]", "{}", "[null]", "[[]]", "[{}]", '{"": null}', '{"a": 1, "a": 2}', "[0, 1, 2]"),
    *("[" * 90 + "]" * 90, '{"a": ' * 90 + "1" + "}" * 90, "[" * 400 + "]" * 400, '{"a":' * 400 + "1" + "}" * 400),
    *("[" * 900 + "]" * 900, "[" * 20_000 + "]" * 20_000, "[" * 5000, '{"a":' * 5000),
    *("[" + "0," * 3000 + "0]", "[" + ",".join(f'"{n}"' for n in range(500)) + "]"),
    "{" + ",".join(f'"k{n}": {n}' for n in range(500)) + "}",
    *('["a", 1, null, {}]', '{"self": 1, "cls": 2}', "[true]"),
)
LITERALS = (*NUMBERS, *(json.dumps(word) for word in WORDS), *SHAPES)
"""What is put in the place of a node, as JSON (some of it broken)."""
CHUNKS = (
    *(b"\0", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\x1f\x8b", b"PK\x03\x04", b"\r", b"\r\n", b"\n\n"),
    *(b"\t", b"\x0b"),
    *rb"""" "" ' , ; : { } [ ] # \ \u0000 \ud800 = - +""".split(),
    *(b"&a ", b"*a", b"<<: *a", b"<<: {a: 1}", b"!!python/object:os.system ", b"!!binary x", b"!!timestamp x"),
    *(b"!!int x", b"!!float 1", b"!!set {a}", b"!!omap [a]", b"!!bool x", b"!!null x", b"? [a]: b"),
    *(b"? {a: b}\n: c\n", b"%YAML 9.9\n", b"---\n", b"...\n", b"| \n", b">9\n"),
    *(b"1:1:1", b"0x", b"0b", b"1e400", b"nan", b"-inf", b"~", b"9" * 400, b"1" * 5000),
    *(b" " * 3000, b"a" * 3000, b"a=" * 2000, b"[" * 3000, b"{" * 3000, b"- " * 500, b'"' * 999),
    *(b"\xe2\x80\xa8", b"\xc2\x85", b"le=", b'le="+Inf"', b"# EOF\n", b"# {", b"NaN", b"true", b"null"),
    *(b"2026-11-22", b"[[x]]\n", b"[x.y]\n", b"'''"),
)
"""What is put into a text."""


class _Literal:
    """A node that is written as the text it holds."""

    def __init__(self, text: str) -> None:
        self.text = text


def _nodes(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _nodes(value, (*path, key))
    elif isinstance(tree, list):
        for place, value in enumerate(tree):
            yield from _nodes(value, (*path, place))


def mutated_tree(tree: Any, mutations: Sequence[Mutation]) -> str:
    """The tree as JSON text with the mutations applied one after the other."""
    found = copy.deepcopy(tree)
    for mutation in mutations:
        found = _mutated(found, mutation)
    return _written(found)


def _mutated(tree: Any, mutation: Mutation) -> Any:
    paths = list(_nodes(tree))
    path = paths[mutation.place % len(paths)]
    literal = _Literal(LITERALS[mutation.value % len(LITERALS)])
    if not path:
        return literal if mutation.action % 4 == 0 else [tree, literal] if mutation.action % 4 == 1 else {"a": tree}
    holder = tree
    for step in path[:-1]:
        holder = holder[step]
    _change(holder, path[-1], mutation, literal)
    return tree


def _change(holder: Any, last: Any, mutation: Mutation, literal: _Literal) -> None:
    action = mutation.action % 10
    if action <= 4:
        holder[last] = literal
    elif action == 5:
        del holder[last]
    elif action == 6:
        holder[last] = [holder[last]]
    elif action == 7:
        holder[last] = {"a": holder[last]}
    elif isinstance(holder, list):
        holder.extend([copy.deepcopy(holder[last])] * (1 + mutation.value % 3))
    else:
        word = WORDS[mutation.value % len(WORDS)]
        holder[word if action == 8 else f"{last}_x"] = holder[last] if action == 8 else literal


def _written(tree: Any) -> str:
    """As JSON; literals as they are."""
    if isinstance(tree, _Literal):
        return tree.text
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {_written(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(map(_written, tree)) + "]"
    return json.dumps(tree)


def mutated_table(text: str, mutations: Sequence[Mutation], delimiter: str = ",") -> str:
    """A CSV text with cells, rows and columns changed."""
    rows = list(csv.reader(io.StringIO(text), delimiter=delimiter))
    for mutation in mutations:
        if rows:
            rows = _with_changed_row(rows, mutation)
    return "".join(delimiter.join(map(_cell, row)) + "\n" for row in rows)


def _with_changed_row(rows: list[list[str]], mutation: Mutation) -> list[list[str]]:
    place = mutation.place % len(rows)
    row = list(rows[place])
    column = (mutation.place // len(rows)) % max(1, len(row))
    words = (*NUMBERS, *WORDS)
    action = mutation.action % 8
    if action <= 4:
        row[column : column + 1] = [words[mutation.value % len(words)]]
    elif action == 5:
        row.extend(row)
    elif action == 6:
        del row[column : column + 1]
    else:
        return [*rows[:place], *([row] * (mutation.value % 3)), *rows[place + 1 :]]
    return [*rows[:place], row, *rows[place + 1 :]]


def _cell(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if re.search(r'[",;\n\r]', text) else text


def mutated_lines(text: str, mutations: Sequence[Mutation]) -> str:
    """A text of ``key = value`` lines (TOML) with values replaced, lines dropped, doubled and moved."""
    lines = text.splitlines()
    for mutation in mutations:
        place = mutation.place % len(lines)
        key, equals, _ = lines[place].partition("=")
        literal = LITERALS[mutation.value % len(LITERALS)]
        action = mutation.action % 8
        if action <= 3 and equals:
            lines[place] = f"{key}= {literal}"
        elif action == 4:
            lines[place] = re.sub(r"(?<=value = )[^,}]+", literal.replace("\\", r"\\"), lines[place])
        elif action == 5 and len(lines) > 1:
            del lines[place]
        elif action == 6:
            lines.insert(place, lines[mutation.value % len(lines)])
        else:
            lines[place] = f"{key.strip() or 'a'}.{WORDS[mutation.value % len(WORDS)]!a} = 1"
    return "\n".join(lines) + "\n"


def mutated_bytes(content: bytes, mutations: Sequence[Mutation]) -> bytes:
    """A text with bytes put in, replaced, cut off and repeated, or in another encoding."""
    for mutation in mutations:
        place = mutation.place % (len(content) + 1)
        chunk = CHUNKS[mutation.value % len(CHUNKS)]
        action = mutation.action % 12
        if action <= 4:
            content = content[:place] + chunk + content[place:]
        elif action <= 7:
            content = content[:place] + chunk + content[place + len(chunk) :]
        elif action == 8:
            content = content[:place]
        elif action == 9:
            content = content[:place] + content[max(0, place - 40) : place] * 3 + content[place:]
        elif action == 10:
            content = content[:place] + content[place + 1 + mutation.value % 50 :]
        else:
            content = _recoded(content, mutation.value)
    return content


def _recoded(content: bytes, form: int) -> bytes:
    """Another encoding, another line end, one line, or nothing."""
    text = content.decode("utf-8", "replace")
    forms = (
        lambda: text.encode("utf-16"),
        lambda: text.encode("utf-16-be"),
        lambda: text.encode("utf-32"),
        lambda: b"\xef\xbb\xbf" + content,
        lambda: content.replace(b"\n", b"\r\n"),
        lambda: content.replace(b"\n", b"\r"),
        lambda: content.replace(b"\n", b" "),
        lambda: content * 2,
        lambda: b"",
        lambda: b"\n" * 100,
    )
    return forms[form % len(forms)]()
