"""A flame graph as an SVG: a box for each call, as wide as its share of the CPU time, on top of the call's caller."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT, FONT = 1600, 16, 11  # of the picture, of a box, in pixels
LEAST = 0.0005  # the smallest share that is drawn
START = "flows/commands/run.py:run_pipeline"  # what calls it is in every stack
FOLDERS = re.compile(r"^.*(?:site-packages|lib/python[\d.]+|/main|gristmill)/")


@dataclass
class Call:
    """A function in its callers: seconds with those of what it calls."""

    seconds: float = 0.0
    calls: dict[str, Call] = field(default_factory=dict)


def flame_graph(stacks: Mapping[str, float]) -> str:
    """The SVG of seconds by stack."""
    root = Call(sum(stacks.values()))
    for stack, seconds in stacks.items():
        call = root
        for name in _shown(stack):
            call = call.calls.setdefault(name, Call())
            call.seconds += seconds
    boxes = [*_boxes(root, 0.0, 0, root.seconds)]
    depth = 1 + max(level for level, *_ in boxes)
    drawn = "".join(_box(depth - 1 - level, left, share, name, taken) for level, left, share, name, taken in boxes)
    size = f'width="{WIDTH}" height="{depth * HEIGHT}" font-size="{FONT}" font-family="monospace"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{drawn}</svg>\n'


def _shown(stack: str) -> list[str]:
    names = [FOLDERS.sub("", name) for name in stack.split(";")]
    return names[names.index(START) :] if START in names else names


def _boxes(call: Call, left: float, level: int, total: float) -> list[tuple[int, float, float, str, float]]:
    found = []
    for name, inner in sorted(call.calls.items()):
        share = inner.seconds / total
        if share >= LEAST:
            found.append((level, left, share, name, inner.seconds))
            found += _boxes(inner, left, level + 1, total)
        left += share
    return found


def _box(row: int, left: float, share: float, name: str, seconds: float) -> str:
    x, y, width = left * WIDTH, row * HEIGHT, share * WIDTH
    hue = sum(name.encode()) % 50
    fits = int(width / (0.62 * FONT))
    text = f'<text x="{x + 2:.1f}" y="{y + 12}">{escape(name[:fits])}</text>' if fits > 3 else ""
    box = f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{HEIGHT - 1}" fill="hsl({hue},80%,70%)"/>'
    return f"<g><title>{escape(name)}: {seconds:.2f} s, {share:.1%}</title>{box}{text}</g>"
