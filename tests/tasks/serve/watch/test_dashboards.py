"""The dashboard and alerts in deploy/: every metric that they name is on the page, and every alert says what to do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.tasks.serve.watch.report import Found, ask, watching

DEPLOY = Path(__file__).parents[4] / "deploy"
FUNCTIONS = {
    "absent",
    "histogram_quantile",
    "increase",
    "label_values",
    "max",
    "min",
    "rate",
    "sum",
    "topk",
    "by",
    "or",
}


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana-serving.json").read_text())
    return found


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOY / "prometheus-alerts.yaml").read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def expressions() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]
    yield from (rule["expr"] for rule in alerts())


def named(expression: str) -> set[str]:
    """The metrics in PromQL: words that are neither labels, nor strings, nor durations, nor functions."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\bby \([^)]*\)|,\s*\w+\)$", " ", expression)
    return set(re.findall(r"[a-zA-Z_][a-zA-Z0-9_:]*", bare)) - FUNCTIONS


def page(folder: Path) -> str:
    with watching(folder) as watch:
        watch.ready("tiny", True)
        watch.restarted("tiny")
        watch.load("tiny", running=1, waiting=1)
        ask(watch, findings=(Found("email"),))
        return watch.metrics_page().decode()


def test_every_metric_of_a_panel_or_an_alert_is_on_the_page(tmp_path: Path) -> None:
    there = {sample.name for family in text_string_to_metric_families(page(tmp_path)) for sample in family.samples}
    wanted = {name for expression in expressions() for name in named(expression)}
    assert named('sum by (le) (rate(vllm:a_b_bucket{x=~"$y"}[5m])) > 0.5') == {"vllm:a_b_bucket"}
    assert len(wanted) >= 17
    assert wanted - there == set()


def test_every_label_of_a_panel_or_an_alert_is_one_of_its_metric(tmp_path: Path) -> None:
    labels = dict[str, set[str]]()
    for family in text_string_to_metric_families(page(tmp_path)):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    for expression in expressions():
        (metrics, grouped) = named(expression), re.findall(r"\bby \(([^)]*)\)", expression)
        matched = re.findall(r"(\w+)\s*(?:=~|!=|=)\s*\"", expression)
        used = {name.strip() for group in grouped for name in group.split(",")} | set(matched)
        known = set().union(*(labels[metric] for metric in metrics)) | {"instance"}
        assert used <= known, expression


def test_the_dashboard_can_be_imported_into_any_grafana() -> None:
    found = dashboard()
    assert (found["uid"], found["schemaVersion"] >= 36, found.get("id")) == ("gristmill-serving", True, None)
    assert [one["name"] for one in found["templating"]["list"]] == ["datasource", "model"]
    panels = [panel for panel in found["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])
    assert len({panel["title"] for panel in panels}) == len(panels)
    for panel in panels:
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
    places = [panel["gridPos"] for panel in found["panels"]]
    for number, one in enumerate(places):
        assert one["x"] + one["w"] <= 24
        for other in places[:number]:
            apart_x = one["x"] >= other["x"] + other["w"] or other["x"] >= one["x"] + one["w"]
            apart_y = one["y"] >= other["y"] + other["h"] or other["y"] >= one["y"] + one["h"]
            assert apart_x or apart_y, (one, other)


def test_every_alert_waits_has_a_severity_and_says_what_to_do() -> None:
    found = alerts()
    assert len({rule["alert"] for rule in found}) == len(found) >= 10
    for rule in found:
        assert re.fullmatch(r"\d+m", rule["for"]), rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
        assert len(rule["annotations"]["description"].split()) >= 10


def test_prometheus_itself_accepts_them_and_the_page(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool, for instance of Debian's package prometheus")
    plain = [re.sub(r"\$__rate_interval", "5m", one).replace("$model", ".*") for one in expressions()]
    rules = [{"record": f"r{n}", "expr": one} for n, one in enumerate(plain) if not one.startswith("label_values")]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    for file in (DEPLOY / "prometheus-alerts.yaml", tmp_path / "panels.yaml"):
        done = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run([promtool, "check", "metrics"], input=page(tmp_path), capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if "should not contain ':'" not in line]  # vLLM's names do
    assert said == []
