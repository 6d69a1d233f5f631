"""Reports a model's measurements for people and programs: tables, plots, language.json and language.md."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.stage.display.figures import BLUE, GREY, new_figure, save_figure
from tasks.stage.display.pages import markdown_table
from tasks.stage.output import Output

DIGITS = 6  # decimals of float32 sums that are the same each time on one machine

Row = Mapping[str, Any]


def write(result: Mapping[str, Any], out: Output) -> None:
    """Write a child's result into the artifact, and count it."""
    facts = result["facts"]
    measured = rounded({name: value for name, value in result.items() if name != "facts"})
    (out.path / "language.json").write_text(json.dumps(measured, indent=2) + "\n")
    shown = tables(measured)
    pages = [f"## {title}\n\n{markdown_table(rows)}" for title, rows in shown.items()]
    text = "\n\n".join(["# Language modelling", *pages, *notes(measured)]) + "\n"
    (out.path / "language.md").write_text(text, encoding="utf-8")
    held_out, files = measured.get("held_out"), measured["files"]
    if held_out:
        plot_calibration(held_out["calibration"], out.path / "calibration.png")
        plot_positions(held_out["by_position"], out.path / "positions.png")
    for title, rows in shown.items():
        out.table(title, rows)
    out.fact(**facts)
    parts = [f"{held_out['bits_per_byte']:.3f} bits per byte"] if held_out else []
    parts += [f"{name} {file['bits_per_byte']:.3f}" for name, file in files.items()]
    out.count(language=_headline(measured), summary=", ".join(parts))


def rounded(value: Any) -> Any:
    """The same value with all numbers rounded to DIGITS."""
    if isinstance(value, Mapping):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def tables(measured: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Tables by title, as Markdown and the Prefect UI show them."""
    shown: dict[str, list[dict[str, Any]]] = {}
    held_out = measured.get("held_out")
    if held_out:
        size = sum(row["bytes"] for row in held_out["by_source"])
        whole = {"name": "all", "documents": held_out["documents"], "bytes": size, **_bits(held_out)}
        sources = held_out["by_source"]
        shown["Bits per byte by source"] = [_text_row("source", row) for row in (*sources, whole)]
        shown["Bits per byte by length"] = [
            _text_row("bytes of a document", row) for row in held_out["by_length"] if row["documents"]
        ]
        shown["Loss by position"] = [
            {
                "position in the window": row["position"],
                "tokens": f"{row['tokens']:,}",
                "nats a token": _with_error(row["nats_per_token"], row["nats_per_token_stderr"]),
            }
            for row in held_out["by_position"]
        ]
        shown["Calibration"] = [
            {
                "confidence": f"{row['from']:.3f} to {row['to']:.3f}",
                "tokens": f"{row['tokens']:,}",
                "mean confidence": f"{row['confidence']:.3f}",
                "accuracy": _with_error(row["accuracy"], row["accuracy_stderr"]),
            }
            for row in held_out["calibration"]["bins"]
        ]
    if measured["files"]:
        shown["Perplexity of files"] = [_file_row(name, row) for name, row in measured["files"].items()]
    return shown


def notes(measured: Mapping[str, Any]) -> list[str]:
    """Notes that explain the tables."""
    lines = ["± is one standard error over documents."]
    if "held_out" in measured:
        if measured["held_out"]["is_sample"]:
            lines.append(
                "A sample was measured: bits per byte of all take the bytes of the whole split in proportion, the "
                "other rows those of the tokens measured."
            )
        result = measured["held_out"]["calibration"]
        lines.append(
            f"Expected calibration error: {result['ece']:.4f}; a calibrated model would show "
            f"{result['ece_if_calibrated']:.4f} on as many tokens. The most likely token is right "
            f"{result['accuracy']:.1%} of the time, with a mean confidence of {result['confidence']:.1%}."
        )
    return lines


def plot_calibration(result: Mapping[str, Any], path: Path) -> None:
    """Draw accuracy over confidence, with two standard errors. A calibrated model lies on the diagonal."""
    figure = new_figure(4.5)
    axes = figure.subplots()
    bins = result["bins"]
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--", label="calibrated")
    axes.errorbar(
        [row["confidence"] for row in bins],
        [row["accuracy"] for row in bins],
        yerr=[2 * (row["accuracy_stderr"] or 0) for row in bins],
        color=BLUE,
        marker="o",
        markersize=4,
        linewidth=1.5,
        capsize=2,
        label="model",
    )
    axes.set(
        xlim=(0, 1),
        ylim=(0, 1),
        xlabel="confidence in the most likely token",
        ylabel="share that is right",
        title=f"Calibration: expected error {result['ece']:.3f}",
    )
    _finish(figure, axes, path)


def plot_positions(rows: Sequence[Row], path: Path) -> None:
    """Draw the loss over the position in the window, with two standard errors."""
    figure = new_figure(4)
    axes = figure.subplots()
    axes.errorbar(
        [math.sqrt(row["from"] * row["to"]) for row in rows],
        [row["nats_per_token"] for row in rows],
        yerr=[2 * (row["nats_per_token_stderr"] or 0) for row in rows],
        color=BLUE,
        marker="o",
        markersize=4,
        linewidth=1.5,
        capsize=2,
        label="held-out text",
    )
    axes.set_xscale("log", base=2)
    axes.set(xlabel="position in the window (tokens)", ylabel="loss (nats a token)", title="Loss by position")
    _finish(figure, axes, path)


def _finish(figure: Any, axes: Any, path: Path) -> None:
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    save_figure(figure, path)


def _headline(measured: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers that a comparison of two artifacts shows."""
    headline: dict[str, Any] = {"files": {name: _bits(row) for name, row in measured["files"].items()}}
    if "held_out" in measured:
        held_out = measured["held_out"]
        headline |= {**_bits(held_out), "ece": held_out["calibration"]["ece"]}
        headline["sources"] = {row["name"]: _bits(row) for row in held_out["by_source"] if row["documents"]}
    return headline


def _bits(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in ("bits_per_byte", "bits_per_byte_stderr")}


def _text_row(head: str, row: Row) -> dict[str, str]:
    bits = _with_error(row["bits_per_byte"], row["bits_per_byte_stderr"]) if row["documents"] else ""
    return {
        head: row["name"],
        "documents": f"{row['documents']:,}",
        "bytes": f"{row['bytes']:,}",
        "bits per byte": bits,
    }


def _file_row(name: str, row: Row) -> dict[str, str]:
    return {
        "file": name,
        "documents": f"{row['documents']:,}",
        "bytes": f"{row['bytes']:,}",
        "tokens": f"{row['tokens']:,}",
        "bits per byte": _with_error(row["bits_per_byte"], row["bits_per_byte_stderr"]),
        "byte perplexity": _perplexity(row["byte_perplexity"]),
        "word perplexity": _perplexity(row["word_perplexity"]),
    }


def _perplexity(value: float | None) -> str:
    return "too large" if value is None else f"{value:,.3f}" if value < 1e9 else f"{value:.3e}"


def _with_error(value: float, error: float | None) -> str:
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"
