"""Inputs from inputs: bytes flipped, cut, repeated and spliced, words put in, JSON changed as the tree that it is."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from random import Random
from typing import Any

NUMBERS = (0, 1, -1, 127, 128, 255, 256, 32767, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, -(2**63))
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    "",
    "x",
    "\0",
    "\ud800",
    "../../x",
    "é" * 40,
    [],
    {},
    [[]],
    [None],
    {"": None},
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    10**400,
    *NUMBERS,
)
WORDS = (
    b"\0",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b"\n",
    b"\r\n",
    b"9" * 5000,
    b"[" * 5000,
    b'{"a":' * 2000,
    b"-",
)
LONGEST = 1 << 16  # bytes of a case, so that slow is not taken for endless


def mutate(draw: Random, data: bytes, others: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """The input after one to six changes."""
    for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
        changed = _tree(draw, data) if draw.random() < 0.5 else None
        data = _bytes(draw, data, others, words) if changed is None else changed
    return data[:LONGEST]


def _bytes(draw: Random, data: bytes, others: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    if not data:
        return draw.choice(others or words)
    at, end = sorted((draw.randrange(len(data)), draw.randrange(len(data) + 1)))
    match draw.randrange(9):
        case 0:  # a bit
            return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
        case 1:
            return data[:at] + draw.randbytes(draw.randrange(1, 9)) + data[min(end, at + 8) :]
        case 2:
            return data[:at]
        case 3:
            return data[:at] + data[end:]
        case 4:
            return data[:end] + data[at:end] * draw.randrange(1, 4) + data[end:]
        case 5:
            return data[:at] + draw.choice(words) + data[draw.choice((at, end)) :]
        case 6:  # a number as binary formats have it
            layout = draw.choice(["<B", "<H", "<I", "<Q", ">I"])
            number = struct.pack(layout, draw.choice(NUMBERS) % (1 << 8 * struct.calcsize(layout)))
            return data[:at] + number + data[at + len(number) :]
        case 7:
            other = draw.choice(others)
            return data[:at] + other[draw.randrange(len(other) + 1) :]
        case _:  # a line again elsewhere
            lines = data.split(b"\n")
            lines.insert(draw.randrange(len(lines) + 1), draw.choice(lines))
            return b"\n".join(lines)


def _tree(draw: Random, data: bytes) -> bytes | None:
    """One change in a JSON value, or in one of several lines of JSON; None for other data."""
    lines = data.split(b"\n") if draw.random() < 0.8 else [data]
    number = draw.randrange(len(lines))
    try:
        root = [json.loads(lines[number] if len(lines[number]) > 1 else data)]
    except (ValueError, RecursionError):
        return None
    places: list[tuple[Any, Any]] = []
    waiting: list[Any] = [root]
    while waiting:
        node = waiting.pop()
        found = list(node.items() if isinstance(node, dict) else enumerate(node))
        places += [(node, key) for key, _ in found]
        waiting += [value for _, value in found if isinstance(value, dict | list)]
    node, key = draw.choice(places)
    match draw.randrange(5):
        case 0 if node is not root:
            del node[key]
        case 1 if isinstance(node, dict):
            node[draw.choice((f"{key}x", "", "\ud800"))] = node.pop(key)
        case 2:
            node[key] = [node[key]]
        case 3:
            other, name = draw.choice(places)
            node[key] = other.get(name) if isinstance(other, dict) else other[name] if name < len(other) else None
        case _:
            node[key] = draw.choice(VALUES)
    try:
        text = json.dumps(root[0]).encode()
    except (ValueError, RecursionError):  # a value has come to hold itself
        return None
    return text if len(lines[number]) <= 1 else b"\n".join([*lines[:number], text, *lines[number + 1 :]])
