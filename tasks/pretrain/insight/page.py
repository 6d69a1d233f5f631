"""The live page of a run: loss curve and speed, and layer statistics and operators where they are recorded.

It is written only while somebody looks at it (see `Output.page`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.pretrain.insight.heatmaps import plot_heatmaps, plot_loads
from tasks.pretrain.insight.layer_history import LayerHistory
from tasks.pretrain.insight.speed import mfu_text, slow_hosts, speed_table, summarise
from tasks.pretrain.spec import TrainSpec
from tasks.stage.display.pages import embed_plot, markdown_table
from tasks.stage.output import Output
from tasks.training.logs import read_log
from tasks.training.plots import plot_loss

CURVE_ROWS = 2000  # points of the live curve: more take longer to draw without being visible
MEASURES = {
    "rms": "RMS",
    "max": "max",
    "zeros": "zeros",
    "outliers": "outliers",
    "gradient_norm": "gradient norm",
    "weight_norm": "weight norm",
    "update_ratio": "update / weights",
    "entropy": "attention entropy",
    "lowest_entropy": "lowest head's",
}


class Page:
    """Builds the page from the child's progress lines."""

    def __init__(self, spec: TrainSpec, out: Output) -> None:
        self.spec, self.out = spec, out
        # A resumed run has rows already
        self.rows: list[dict[str, Any]] = read_log(spec.log) if spec.log.is_file() else []
        self.begun = (time.monotonic(), self.rows[-1]["step"] if self.rows else 0)
        self.newest: dict[str, Any] = {}
        self.history = LayerHistory(spec.insight / "insight.jsonl")
        self.drawn = 0  # the newest step in the heatmaps

    def add(self, line: Mapping[str, Any]) -> str:
        """Take a progress line of the child. Returns the text for the progress display."""
        while self.rows and self.rows[-1]["step"] >= line["step"]:  # it resumed from an earlier step
            self.rows.pop()
            self.history.forget()
        self.rows.append({name: line[name] for name in ("step", "loss", "validation_loss") if name in line})
        self.newest |= line
        self.out.page("live", self.write)
        waits = f", waiting for {line['waits_for']}" if line.get("waits_for") else ""
        return f"loss {line['loss']:.2f}, {line['tokens_per_second']:,.0f} tokens/s, {mfu_text(line)}{waits}"

    def write(self) -> str:
        """The page as Markdown with embedded pictures."""
        step, steps = self.rows[-1]["step"], self.spec.steps
        parts = [f"## Step {step:,} of {steps:,}", markdown_table(self._figures())]
        if len(self.rows) > 1:
            self.spec.insight.mkdir(parents=True, exist_ok=True)
            curve = self.spec.insight / "live.png"
            plot_loss(_thinned(self.rows), curve, title="")
            parts.append(embed_plot(curve))
        records = self.history.read()
        if records:
            picture = self.spec.insight / "layers.png"
            if records[-1]["step"] != self.drawn:
                plot_heatmaps(records, picture)
                if "routers" in records[-1]:
                    plot_loads(records, self.spec.insight / "loads.png")
                self.drawn = records[-1]["step"]
            parts += [embed_plot(picture), f"### Layers at step {records[-1]['step']:,}", layers_text(records[-1])]
            if "routers" in records[-1]:
                parts += [f"### Experts at step {records[-1]['step']:,}", markdown_table(router_rows(records[-1]))]
                parts.append(embed_plot(self.spec.insight / "loads.png"))
        for number, operators in self._operators().items():
            parts += [f"### Costliest operators, step {number:,}", markdown_table(operators)]
        return "\n\n".join(parts)

    def report(self, out: Output) -> None:
        """Write the figures of the run to the facts, and the final page."""
        speeds = read_log(self.spec.insight / "speed.jsonl")
        summary = summarise(speeds)
        out.fact(**summary)
        out.fact_table("Speed", speed_table(summary, str(speeds[0]["precision"])))
        slow = slow_hosts(speeds)
        if slow:
            out.fact(slow_hosts=slow)
            out.fact_table("Slow hosts", slow)
        records, operators = self.history.read(), self._operators()
        if records:
            out.fact_table(f"Layers at step {records[-1]['step']:,}", layer_rows(records[-1]))
            if "routers" in records[-1]:
                out.fact_table(f"Experts at step {records[-1]['step']:,}", router_rows(records[-1]))
        for step, rows in operators.items():
            out.fact_table(f"Costliest operators, step {step:,}", rows)
        missed = [step for step in self.spec.runtime.tracking.profile_steps if step not in operators]
        if missed:
            out.warn(f"runtime.tracking.profile_steps: {missed} came before this run resumed, so they are not traced")
        if records or operators:
            out.note(f"layer statistics and traces are in {self.spec.insight}")
            (self.spec.insight / "page.md").write_text(self.write(), encoding="utf-8")
        if self.rows:
            out.page("live", self.write, last=True)

    def _figures(self) -> list[dict[str, str]]:
        newest, (started, first) = self.newest, self.begun
        rows = {"loss": f"{self.rows[-1]['loss']:.4f} nats a token"}
        if "validation_loss" in newest:
            rows["validation loss"] = f"{newest['validation_loss']:.4f} nats a token"
        if "mfu_measured" in newest:
            rows["speed"] = f"{newest['tokens_per_second']:,.0f} tokens/s, {mfu_text(newest)}"
            if newest.get("waits_for"):
                rows["waiting for"] = newest["waits_for"]
            rows["peak memory"] = f"{newest['memory_bytes'] / 1e6:,.0f} MB"
        done, left = self.rows[-1]["step"] - first, self.spec.steps - self.rows[-1]["step"]
        if done > 0 and left:
            rows["time left"] = f"{(time.monotonic() - started) * left / done / 60:,.1f} min"
        return [{"measure": name, "value": value} for name, value in rows.items()]

    def _operators(self) -> dict[int, list[dict[str, Any]]]:
        files = sorted(self.spec.insight.glob("operators-*.json"))
        return {_step_of(path): json.loads(path.read_text()) for path in files}


def layer_rows(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """A row of insight.jsonl as a table, without the norm layers, which are only in the file."""
    measures = _measures(record)
    return [
        {"layer": layer, **{MEASURES[name]: _short(stats.get(name)) for name in measures}}
        for layer, stats in record["layers"].items()
        if not layer.endswith("_norm")
    ]


def router_rows(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """How evenly each router spread the tokens, from a row of insight.jsonl."""
    return [
        {
            "router": name,
            "largest load / mean": _short(found["largest"]),
            "smallest load / mean": _short(min(found["load"]) * len(found["load"])),
            "entropy, share of the most": _short(found["entropy"]),
            "dropped tokens": str(found["dropped"]),
        }
        for name, found in record["routers"].items()
    ]


def layers_text(record: Mapping[str, Any]) -> str:
    """The table, the logits, and a note of what is not available with this engine, as Markdown."""
    parts = [markdown_table(layer_rows(record))]
    if record.get("logit_max") is not None:
        parts.append(f"Logits: largest {record['logit_max']:.3g}, entropy {_short(record['logit_entropy'])} nats.")
    missing = [title for name, title in MEASURES.items() if name not in _measures(record)]
    missing += [] if "logit_max" in record else ["logits"]
    if missing:
        parts.append(f"Not available with this engine: {', '.join(missing)}.")
    return "\n\n".join(parts)


def _measures(record: Mapping[str, Any]) -> list[str]:
    return [name for name in MEASURES if any(name in stats for stats in record["layers"].values())]


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    stride = -(-len(rows) // CURVE_ROWS)
    return [row for number, row in enumerate(rows) if number % stride == 0 or "validation_loss" in row]


def _step_of(path: Path) -> int:
    return int(path.stem.partition("-")[2])
