"""A graph as a drawing in layers: sources at the top, a node below all of its inputs.

The method of Sugiyama, Tagawa and Toda (1981): a node's layer is its longest path from a source, edges over several
layers pass through invisible nodes, each layer is ordered by the mean position of its neighbours, and a node then moves
as near to that mean as its own neighbours let it. A node leads to an anchor on the page.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, ACROSS, DOWN = 116, 40, 24, 30  # pixels: a node, and the gaps between nodes and layers
THIN = 4  # of an invisible node
SWEEPS = 24
CHARACTERS = 17  # of a label


@dataclass(frozen=True)
class Vertex:
    """A node: its label and a remark below it, the anchor that it leads to, the class of its style, and its inputs."""

    label: str
    remark: str
    anchor: str
    style: str
    inputs: Sequence[str]


def draw(vertices: Mapping[str, Vertex], title: str) -> str:
    """The graph as SVG. `vertices` are ordered, inputs first."""
    layers, edges = _layers(vertices)
    for sweep in range(SWEEPS):
        _order(layers, edges, down=sweep % 2 == 0)
    places = _places(layers, edges, vertices)
    width = max(x + (WIDTH if name in vertices else THIN) / 2 for name, (x, _) in places.items()) + 1
    height = len(layers) * (HEIGHT + DOWN) - DOWN + 2
    lines = [_edge(places, path) for path in _paths(edges)]
    nodes = [_node(places[name], vertex) for name, vertex in vertices.items()]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" role="group" '
        f'aria-label="{escape(title)}">{"".join(lines)}{"".join(nodes)}</svg>'
    )


def _layers(vertices: Mapping[str, Vertex]) -> tuple[list[list[str]], list[tuple[str, str]]]:
    """The nodes of each layer, with invisible ones `input>output>layer`, and the edges between neighbouring layers."""
    depth: dict[str, int] = {}
    for name, vertex in vertices.items():
        depth[name] = max((depth[one] + 1 for one in vertex.inputs), default=0)
    for name in reversed([*vertices]):  # sources move down, next to what reads them
        below = [depth[other] for other, vertex in vertices.items() if name in vertex.inputs]
        if below and not vertices[name].inputs:
            depth[name] = min(below) - 1
    layers: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for name in vertices:
        layers[depth[name]].append(name)
    edges: list[tuple[str, str]] = []
    for name, vertex in vertices.items():
        for one in vertex.inputs:
            path = [one, *(f"{one}>{name}>{layer}" for layer in range(depth[one] + 1, depth[name])), name]
            for layer, invisible in enumerate(path[1:-1], depth[one] + 1):
                layers[layer].append(invisible)
            edges += itertools.pairwise(path)
    return layers, edges


def _order(layers: list[list[str]], edges: Iterable[tuple[str, str]], *, down: bool) -> None:
    """Order each layer by the mean position of its neighbours in the layer before it, or after it."""
    neighbours: dict[str, list[str]] = {}
    for above, below in edges:
        neighbours.setdefault(below if down else above, []).append(above if down else below)
    for before, here in zip(*(layers, layers[1:]) if down else (layers[::-1], layers[-2::-1]), strict=False):
        position = {name: (number + 0.5) / len(before) for number, name in enumerate(before)}
        now = {name: (number + 0.5) / len(here) for number, name in enumerate(here)}
        means = {
            name: sum(position[one] for one in found) / len(found) if (found := neighbours.get(name)) else now[name]
            for name in here
        }
        here.sort(key=lambda name: means[name])


def _places(
    layers: Sequence[Sequence[str]], edges: Iterable[tuple[str, str]], vertices: Mapping[str, Vertex]
) -> dict[str, tuple[float, float]]:
    """The centre of each node."""
    size = {name: WIDTH if name in vertices else THIN for layer in layers for name in layer}
    neighbours: dict[str, list[str]] = {name: [] for name in size}
    for above, below in edges:
        neighbours[above].append(below)
        neighbours[below].append(above)
    x = dict.fromkeys(size, 0.0)
    for _ in range(SWEEPS):
        for layer in layers:
            means = [sum(x[one] for one in neighbours[name]) / max(1, len(neighbours[name])) for name in layer]
            x.update(zip(layer, _apart(means, [size[name] for name in layer]), strict=True))
    left = min(x[name] - size[name] / 2 for name in x) - 1
    return {
        name: (x[name] - left, 1 + number * (HEIGHT + DOWN) + HEIGHT / 2)
        for number, layer in enumerate(layers)
        for name in layer
    }


def _apart(wanted: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """The places nearest to the wanted ones, by squares, that keep order and gaps: isotonic regression."""
    offsets = [0.0]
    for one, other in itertools.pairwise(sizes):
        offsets.append(offsets[-1] + (one + other) / 2 + ACROSS)
    from scipy.optimize import isotonic_regression  # a third of a second to import

    fitted = isotonic_regression([place - offset for place, offset in zip(wanted, offsets, strict=True)]).x
    return [float(mean) + offset for mean, offset in zip(fitted, offsets, strict=True)]


def _paths(edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Each edge from node to node, through its invisible nodes."""
    of_edge: dict[tuple[str, str], list[str]] = {}
    for above, below in edges:
        first = above.split(">")[0]
        last = below.split(">")[1] if ">" in below else below
        of_edge.setdefault((first, last), [first]).append(below)
    return [*of_edge.values()]


def _edge(places: Mapping[str, tuple[float, float]], path: Sequence[str]) -> str:
    half = HEIGHT / 2
    x, y = places[path[0]]
    drawn = f"M{x:.1f} {y + half:.1f}"
    y += half
    for name in path[1:]:
        to_x, to_y = places[name][0], places[name][1] - half
        bend = (to_y - y) / 2
        drawn += f"C{x:.1f} {y + bend:.1f} {to_x:.1f} {to_y - bend:.1f} {to_x:.1f} {to_y:.1f}"
        x, y = to_x, to_y
        if name != path[-1]:
            y += HEIGHT
            drawn += f"V{y:.1f}"
    return f'<path d="{drawn}"/>'


def _node(place: tuple[float, float], vertex: Vertex) -> str:
    x, y = place
    label = vertex.label if len(vertex.label) <= CHARACTERS else f"{vertex.label[: CHARACTERS - 1]}…"
    return (
        f'<a href="#{escape(vertex.anchor)}" class="node {escape(vertex.style)}"><title>{escape(vertex.label)}</title>'
        f'<rect x="{x - WIDTH / 2:.1f}" y="{y - HEIGHT / 2:.1f}" width="{WIDTH}" height="{HEIGHT}" rx="3"/>'
        f'<text x="{x:.1f}" y="{y + (-2 if vertex.remark else 4):.1f}">{escape(label)}</text>'
        f'<text x="{x:.1f}" y="{y + 13:.1f}" class="remark">{escape(vertex.remark)}</text></a>'
    )
