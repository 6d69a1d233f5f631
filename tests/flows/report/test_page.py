"""The page of a report: nothing foreign is markup, nothing is asked for, and a browser draws all of it."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from flows.report.drawing import charts
from flows.report.drawing.graph import Vertex, draw
from flows.report.drawing.page import Chart, Page, Section, Table, Text, embedded
from flows.report.report import Report
from flows.report.run_page import page_of
from tests import browser
from tests.flows.report.made import HOSTILE

LINKS = {"a", "use"}  # whose href stays on the page


class Read(HTMLParser):
    """A page's elements, the content of its scripts and styles, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.text: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag if tag in self.raw else ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        (self.raw[self._inside] if self._inside else self.text).append(data)


@pytest.fixture(scope="module")
def page(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("drawn") / "report.html"
    path.write_text(page_of(report).render(), encoding="utf-8")
    return path


def test_what_is_foreign_is_text_and_nothing_is_asked_for(report: Report, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    read = Read(text)
    scripts = [attributes for tag, attributes in read.tags if tag == "script"]
    assert len(scripts) == 3 + len([1 for tag, attributes in read.tags if attributes.get("class") == "plot"])
    assert [attributes for attributes in scripts if "type" not in attributes] == [{}, {}]
    for tag, attributes in read.tags:
        assert tag not in ("img", "iframe", "link", "object", "embed", "base", "b", "form")
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "style", "action")]
        if "href" in attributes:
            assert tag in LINKS
            assert (attributes["href"] or "").startswith("#")
    assert not re.search(r"url\(|@import", "".join(read.raw["style"]))
    assert "<script>alert(1)</script>" in "".join(read.text), "as a reader sees it"
    assert "\u202e" not in text
    assert "\u2028" not in text
    assert len(text) < 1_500_000


def test_its_policy_admits_its_own_scripts_alone(page: Path) -> None:
    read = Read(page.read_text(encoding="utf-8"))
    (policy,) = (a["content"] or "" for tag, a in read.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    source = page.read_text(encoding="utf-8")
    run = re.findall(r"<script>(.*?)</script>", source, re.DOTALL) + re.findall(
        r"<style>(.*?)</style>", source, re.DOTALL
    )
    assert {base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in run} == allowed


def test_the_numbers_in_it_are_those_of_the_report(report: Report, page: Path) -> None:
    held = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(encoding="utf-8"))
    assert held is not None
    assert json.loads(held[1]) == report.model_dump(mode="json")


@pytest.mark.parametrize("value", [HOSTILE, {"</script>": ["<!--", "&amp;", "\u2029"]}])
def test_json_can_t_leave_its_script(value: Any) -> None:
    text = embedded(value)
    assert json.loads(text) == value
    assert not re.search("[<>&\u2028\u2029]", text)


def test_every_chart_is_one_that_vega_draws(report: Report) -> None:
    vl_convert = pytest.importorskip("vl_convert")
    rows: list[dict[str, Any]] = [
        {"step": step, "loss": 1.0, "validation": 2.0, "run": run} for step in (1, 2) for run in "AB"
    ]
    drawn = [block for section in page_of(report).sections for block in section.blocks if isinstance(block, Chart)]
    drawn.append(charts.overlaid("x", rows))
    assert {one.title.partition(" ")[0] for one in drawn} >= {"Why", "Documents", "Loss", "Scores", "Safety", "Time"}
    for chart in drawn:
        assert vl_convert.vegalite_to_vega(json.loads(chart.json))["marks"]
        assert chart.rows


def test_another_page_is_a_list_of_sections() -> None:
    rows: list[dict[str, Any]] = [{"arm": "a", "loss": 1}, {"arm": "b", "loss": 2}]
    sections = [Section("Arms & more", [Text("Two."), Table(rows), charts.bars("Loss", rows, "arm", "loss")])]
    read = Read(Page("A matrix", "Gristmill", "Two arms.", [], sections, {"arms": rows}).render())
    assert ("section", {"id": "arms-more", "aria-labelledby": "arms-more-head"}) in read.tags
    assert read.tags.count(("th", {"scope": "col"})) == 2


def test_a_graph_has_each_node_below_what_it_reads_and_none_over_another() -> None:
    reads = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c", "a"], "e": ["d", "a"], "f": []}
    vertices = {name: Vertex(name, "", name, "stored", inputs) for name, inputs in reads.items()}
    drawn = draw(vertices, "x")
    boxes = {
        name: (float(x), float(y))
        for name, x, y in re.findall(r'href="#(\w)".*?<rect x="([-\d.]+)" y="([-\d.]+)"', drawn)
    }
    assert {*boxes} == {*reads}
    assert all(boxes[one][1] < boxes[name][1] for name, inputs in reads.items() for one in inputs)
    for (x, y), (other_x, other_y) in itertools.combinations(boxes.values(), 2):
        assert y != other_y or abs(x - other_x) > 116
    assert min(x for x, _ in boxes.values()) >= 0


def test_a_browser_draws_it_without_a_word_or_a_request(page: Path, tmp_path: Path) -> None:
    with browser.page(tmp_path) as tab:
        for width in (390, 1440):
            tab.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
            tab.open(page.as_uri())
            plots = tab.run(
                "new Promise(done => { const look = () => document.documentElement?.dataset.drawn "
                "? done(document.documentElement.dataset.drawn) : setTimeout(look, 50); look(); })"
            )
            assert int(plots) == tab.run("document.querySelectorAll('.plot svg').length") > 8
            assert tab.run("document.documentElement.scrollWidth") <= width, "nothing sticks out"
        tab.run("document.querySelector('.graph a').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
        tab.run("location.hash = document.querySelector('.graph a').getAttribute('href')")
        tab.rest(0.3)
        assert tab.run("document.getElementById(location.hash.slice(1)).open")
        before = tab.run("getComputedStyle(document.body).backgroundColor")
        tab.run("document.getElementById('theme').click()")
        assert tab.run("getComputedStyle(document.body).backgroundColor") != before
        assert len(tab.send("Page.printToPDF", printBackground=True)["data"]) > 10_000
        assert tab.said == []
        assert tab.hosts == set()
