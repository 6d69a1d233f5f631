"""Charts as specifications in Vega-Lite 6, in the colours of the page, which change with its theme.

A colour is a variable of the page's style sheet, so that a switch to dark, or a printer, needs no redrawing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flows.report.drawing.page import Cell, Chart

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"  # a name: nothing fetches it
INK, QUIET, GRID, PALE, FAINT, WARM = (f"var(--{name})" for name in ("ink", "quiet", "grid", "pale", "faint", "warm"))
COLOURS = [f"var(--c{number})" for number in range(1, 7)]
BLUE, ORANGE = COLOURS[:2]
FONT = "ui-sans-serif, system-ui, sans-serif"
ROW = 22  # pixels
ROOM = {"left": 0, "right": 64, "top": 4, "bottom": 4}  # for the numbers behind bars
LONG = 260  # pixels of a label, which is cut beyond; the page cuts earlier where it is narrow
ZOOM = "Drag to move, Shift and the wheel to zoom, double click to go back."

VIEW = {  # what a reader drags and zooms
    "name": "view",
    "bind": "scales",
    "select": {"type": "interval", "encodings": ["x", "y"], "zoom": "wheel![event.shiftKey]"},
}
CONFIG: Mapping[str, Any] = {
    "background": "transparent",
    "font": FONT,
    "view": {"stroke": None},
    "axis": {
        "labelColor": QUIET,
        "titleColor": QUIET,
        "domainColor": GRID,
        "gridColor": GRID,
        "tickColor": GRID,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": LONG,
        "labelPadding": 6,
    },
    "axisY": {"domain": False, "ticks": False},
    "axisX": {"ticks": False, "labelFlush": True, "tickCount": 6},
    "legend": {
        "orient": "top",
        "title": None,
        "labelColor": INK,
        "labelFontSize": 12,
        "symbolSize": 80,
        "offset": 8,
        "columnPadding": 16,
        "labelLimit": LONG,
    },
    "bar": {"color": BLUE},
    "point": {"color": BLUE, "filled": True, "size": 60, "opacity": 1},
    "tick": {"opacity": 1},
    "line": {"strokeWidth": 1.75},
    "text": {"color": INK, "fontSize": 12},
    "rule": {"color": QUIET},
}


def _spec(**parts: Any) -> dict[str, Any]:
    return {
        "$schema": SCHEMA,
        "config": CONFIG,
        "width": "container",
        "autosize": {"type": "fit-x", "contains": "padding"},
        "padding": {"left": 0, "right": 4, "top": 4, "bottom": 4},
        **parts,
    }


def _names(field: str) -> dict[str, Any]:
    """An axis of names, in the order of the rows: a list of names would become an expression."""
    return {"field": field, "type": "nominal", "sort": None, "title": None, "axis": {"grid": False}}


def _height(field: str, rows: Sequence[Mapping[str, Cell]]) -> float:
    """Pixels for a row a name."""
    return ROW * len({str(row[field]) for row in rows})


def bars(
    title: str,
    rows: Sequence[Mapping[str, Cell]],
    name: str,
    value: str,
    *,
    said: str = "",
    shown: str = ",",
    marked: str = "",
) -> Chart:
    """A horizontal bar for each row with its number. Where the field `marked` is false, the bar is pale."""
    colour = {"condition": {"test": f"!datum['{marked}']", "value": PALE}, "value": BLUE} if marked else {"value": BLUE}
    encoding = {"y": _names(name), "x": {"field": value, "type": "quantitative", "axis": None}}
    layers = [
        {"mark": {"type": "bar", "height": ROW * 0.6, "tooltip": True}, "encoding": {"color": colour}},
        {
            "mark": {"type": "text", "align": "left", "dx": 6},
            "encoding": {"text": {"field": value, "type": "quantitative", "format": shown}},
        },
    ]
    return Chart(title, _spec(height=_height(name, rows), encoding=encoding, layer=layers, padding=ROOM), rows, said)


def dots(title: str, rows: Sequence[Mapping[str, Cell]], name: str, value: str, *, said: str = "") -> Chart:
    """A dot for each row on a logarithmic axis, for counts that differ by powers of ten."""
    encoding = {
        "y": {**_names(name), "axis": {"grid": True, "gridDash": [1, 3]}},
        "x": {
            "field": value,
            "type": "quantitative",
            "scale": {"type": "log", "domainMin": 0.8},
            "axis": {"title": f"{value}, logarithmic", "format": "~s", "grid": False, "tickCount": 5},
        },
    }
    layers = [
        {"mark": {"type": "point", "tooltip": True}},
        {
            "mark": {"type": "text", "align": "left", "dx": 9},
            "encoding": {"text": {"field": value, "type": "quantitative", "format": ","}},
        },
    ]
    return Chart(title, _spec(height=_height(name, rows), encoding=encoding, layer=layers, padding=ROOM), rows, said)


def shares(
    title: str, rows: Sequence[Mapping[str, Cell]], name: str, value: str, part: str, *, said: str = ""
) -> Chart:
    """A bar for each name, of parts: the first in blue, the others in pale colours."""
    parts = list(dict.fromkeys(str(row[part]) for row in rows))
    scale = {"domain": parts, "range": [BLUE, PALE, WARM, FAINT][: len(parts)]}
    encoding = {
        "y": _names(name),
        "x": {"field": value, "type": "quantitative", "stack": "zero", "axis": {"title": value}},
        "color": {"field": part, "type": "nominal", "scale": scale},
        "order": {"field": "order", "type": "quantitative"},
    }
    numbered = [{**row, "order": parts.index(str(row[part]))} for row in rows]
    spec = _spec(
        height=_height(name, rows),
        encoding=encoding,
        mark={"type": "bar", "height": ROW * 0.6, "tooltip": {"content": "data"}},
    )
    return Chart(title, spec, numbered, said)


def histogram(title: str, rows: Sequence[Mapping[str, Cell]], name: str, value: str, *, said: str = "") -> Chart:
    """A column for each row, in order."""
    encoding = {
        "x": {
            "field": name,
            "type": "ordinal",
            "sort": None,
            "axis": {"title": name, "labelAngle": 0, "labelOverlap": True, "grid": False},
        },
        "y": {"field": value, "type": "quantitative", "axis": {"title": value, "tickCount": 4}},
    }
    spec = _spec(height=180, encoding=encoding, mark={"type": "bar", "width": {"band": 0.85}, "tooltip": True})
    return Chart(title, spec, rows, said)


def intervals(
    title: str,
    rows: Sequence[Mapping[str, Cell]],
    name: str,
    value: str,
    series: str,
    *,
    said: str = "",
    reference: str = "",
    hollow: str = "",
    shown: str = ".3f",
) -> Chart:
    """A dot with its interval (`low` to `high`) for each name and series, a tick at the field `reference`, and hollow
    dots where the field `hollow` is true."""
    names = list(dict.fromkeys(str(row[series]) for row in rows))
    y = {**_names(name), "axis": {"grid": False}}
    offset = {"field": series, "type": "nominal", "sort": None, "scale": {"paddingOuter": 0.5}}
    scale = {"domain": names, "range": [COLOURS[number % len(COLOURS)] for number in range(len(names))]}
    legend = {"symbolType": "circle"} if len(names) > 1 else None
    colour = {"field": series, "type": "nominal", "scale": scale, "legend": legend}
    x = {
        "type": "quantitative",
        "scale": {"zero": False},
        "axis": {"title": value, "format": "~%" if shown.endswith("%") else "~g"},
    }
    tips = [{"field": field, "type": "nominal"} for field in (name, series)]
    tips += [{"field": one, "type": "quantitative", "format": shown} for one in (value, "low", "high")]
    layers: list[dict[str, Any]] = []
    if reference:
        tips.append({"field": reference, "type": "quantitative", "format": shown})
        layers.append(
            {
                "mark": {"type": "tick", "color": QUIET, "thickness": 1.5, "bandSize": 12},
                "encoding": {"x": {**x, "field": reference}, "yOffset": offset},
            }
        )
    layers += [
        {
            "mark": {"type": "rule", "strokeWidth": 1.5},
            "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "yOffset": offset, "color": colour},
        },
        {
            "mark": {"type": "point", "size": 55},
            "encoding": {"x": {**x, "field": value}, "yOffset": offset, "color": colour, "tooltip": tips},
        },
    ]
    if hollow:
        layers.append(
            {
                "transform": [{"filter": f"datum['{hollow}']"}],
                "mark": {"type": "point", "size": 20, "color": "var(--paper)"},
                "encoding": {"x": {**x, "field": value}, "yOffset": offset, "tooltip": tips},
            }
        )
    spec = _spec(height=_height(name, rows) * (0.4 + 0.6 * len(names)) if len(names) > 1 else _height(name, rows))
    return Chart(title, {**spec, "encoding": {"y": y}, "layer": layers}, rows, said)


def scatter(
    title: str,
    rows: Sequence[Mapping[str, Cell]],
    x: str,
    y: str,
    *,
    said: str = "",
    lines: Sequence[Mapping[str, Cell]] = (),
    main: str = "",
    band: Sequence[Mapping[str, Cell]] = (),
    rules: Mapping[str, float] | None = None,
    logarithmic: bool = True,
    height: int = 300,
) -> Chart:
    """A dot for each row. Below them a band from `low` to `high`, lines by the field `line`, of which that named `main`
    is thick, and vertical rules with names."""
    scale = {"type": "log", "nice": False, "padding": 12} if logarithmic else {"zero": False}
    axis = {"title": x, "format": ".2~e" if logarithmic else "~g", "grid": False, "tickCount": 5, "labelOverlap": True}
    across = {"field": x, "type": "quantitative", "scale": scale, "axis": axis}
    up = {"field": y, "type": "quantitative", "scale": {"zero": False}, "axis": {"title": y, "tickCount": 6}}
    layers: list[dict[str, Any]] = []
    if band:
        area = {"x": across, "y": {**up, "field": "low"}, "y2": {"field": "high"}}
        layers.append(
            {"data": {"values": [*band]}, "mark": {"type": "area", "color": WARM, "opacity": 0.3}, "encoding": area}
        )
    for chosen, colour, width in ((False, QUIET, 1), (True, ORANGE, 2.5)):
        if values := [row for row in lines if (row["line"] == main) is chosen]:
            mark = {"type": "line", "color": colour, "strokeWidth": width, "tooltip": {"content": "data"}}
            encoding = {"x": across, "y": up, "detail": {"field": "line", "type": "nominal"}}
            layers.append({"data": {"values": values}, "mark": mark, "encoding": encoding})
    if rules:
        values = [{"rule": name, x: at} for name, at in rules.items()]
        colours = {"domain": [*rules], "range": [QUIET, ORANGE][: len(rules)]}
        encoding = {"x": across, "color": {"field": "rule", "type": "nominal", "scale": colours}}
        layers.append({"data": {"values": values}, "mark": {"type": "rule", "strokeWidth": 2}, "encoding": encoding})
    dots = {"type": "point", "tooltip": {"content": "data"}}
    layers.append({"mark": dots, "encoding": {"x": across, "y": up}})
    return Chart(title, _spec(height=height, layer=layers), rows, said)


def curve(
    title: str, rows: Sequence[Mapping[str, Cell]], *, said: str = "", events: Sequence[int] = (), height: int = 300
) -> Chart:
    """Training loss with its range, validation losses, and rules at the steps of events."""
    x = {"field": "step", "type": "quantitative", "axis": {"title": "step", "grid": False}}
    y = {"type": "quantitative", "scale": {"zero": False}, "axis": {"title": "loss", "tickCount": 6}}
    kinds = ["training", "validation"]
    colour = {"type": "nominal", "scale": {"domain": kinds, "range": [BLUE, ORANGE]}}
    tips = [
        {"field": name, "type": "quantitative", "format": "," if name == "step" else ".4g"}
        for name in ("step", "loss", "validation", "learning rate")
    ]
    layers: list[dict[str, Any]] = [
        {
            "transform": [{"filter": "isValid(datum.low)"}],
            "mark": {"type": "area", "color": PALE, "opacity": 0.5, "clip": True},
            "encoding": {"y": {**y, "field": "low"}, "y2": {"field": "high"}},
        },
        {
            "transform": [{"filter": "isValid(datum.loss)"}],
            "mark": {"type": "line", "clip": True},
            "params": [VIEW],
            "encoding": {"y": {**y, "field": "loss"}, "color": {"datum": kinds[0], **colour}},
        },
        {
            "transform": [{"filter": "isValid(datum.validation)"}],
            "mark": {"type": "line", "clip": True, "point": {"filled": True, "size": 28}},
            "encoding": {"y": {**y, "field": "validation"}, "color": {"datum": kinds[1], **colour}, "tooltip": tips},
        },
        {
            "transform": [{"filter": "isValid(datum.loss)"}],
            "mark": {"type": "point", "opacity": 0, "size": 90, "clip": True},
            "encoding": {"y": {**y, "field": "loss"}, "tooltip": tips},
        },
    ]
    if events:
        layers.append(
            {
                "data": {"values": [{"step": step} for step in events]},
                "mark": {"type": "rule", "strokeDash": [3, 3], "clip": True},
            }
        )
    return Chart(title, _spec(height=height, encoding={"x": x}, layer=layers), rows, said, ZOOM)


def line(title: str, rows: Sequence[Mapping[str, Cell]], name: str, value: str, *, said: str = "") -> Chart:
    """A line, low and wide."""
    encoding = {
        "x": {"field": name, "type": "quantitative", "axis": {"title": name, "grid": False}},
        "y": {"field": value, "type": "quantitative", "axis": {"title": None, "format": "~g", "tickCount": 3}},
    }
    spec = _spec(height=90, encoding=encoding, mark={"type": "line", "color": COLOURS[5], "tooltip": True})
    return Chart(title, spec, rows, said)


def overlaid(title: str, rows: Sequence[Mapping[str, Cell]], *, said: str = "") -> Chart:
    """The losses of two runs in one chart, by the field `run`."""
    runs = list(dict.fromkeys(str(row["run"]) for row in rows))
    y = {"type": "quantitative", "scale": {"zero": False}, "axis": {"title": "loss", "tickCount": 6}}
    encoding = {
        "x": {"field": "step", "type": "quantitative", "axis": {"title": "step", "grid": False}},
        "color": {"field": "run", "type": "nominal", "scale": {"domain": runs, "range": COLOURS[: len(runs)]}},
    }
    layers = [
        {
            "transform": [{"filter": "isValid(datum.loss)"}],
            "mark": {"type": "line", "clip": True, "opacity": 0.55, "strokeWidth": 1.25},
            "params": [VIEW],
            "encoding": {"y": {**y, "field": "loss"}},
        },
        {
            "transform": [{"filter": "isValid(datum.validation)"}],
            "mark": {"type": "point", "size": 40, "clip": True, "tooltip": {"content": "data"}},
            "encoding": {"y": {**y, "field": "validation"}},
        },
    ]
    return Chart(title, _spec(height=260, encoding=encoding, layer=layers), rows, said, ZOOM)
