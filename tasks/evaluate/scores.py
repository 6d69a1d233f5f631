"""Scores for people and programs: every number with its chance level, and a plain word where it is no better.

The headline is the accuracy with each choice's likelihood divided by its length in bytes (`acc_norm` of the harness):
without that, a small model prefers short choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DIGITS = 6  # what float32 sums on one machine repeat; more would pretend
SURE = 2.0  # standard errors from chance before a score says anything


def assemble(result: Mapping[str, Any]) -> dict[str, Any]:
    """{"models": {name: {"bits_per_byte", "tasks": {task: {…, "chance", "is_chance"}}}}}, rounded."""
    models = {}
    for name, measured in result["models"].items():
        tasks = {}
        for task, scores in sorted(measured["tasks"].items()):
            about = result["benchmarks"][task]
            chance = about["chance"]
            rounded = {key: round(value, DIGITS) for key, value in scores.items()}
            distance = abs(scores["normalised_accuracy"] - chance)
            unsure = distance < SURE * scores["normalised_accuracy_stderr"]
            tasks[task] = {**rounded, "chance": round(chance, DIGITS), "is_chance": bool(unsure)}
            tasks[task] |= {"too_long": about["too_long"]} if about["too_long"] else {}
        models[name] = {"bits_per_byte": round(measured["bits_per_byte"], DIGITS), "tasks": tasks}
    return {"models": models}


def side_by_side(scores: Mapping[str, Any]) -> list[dict[str, str]]:
    """A row a measure, a column a model."""
    models = scores["models"]
    names = list(models)
    rows = [
        {
            "measure": "bits per byte",
            **{n: f"{models[n]['bits_per_byte']:.3f}" for n in names},
            "chance": "",
            "items": "",
        }
    ]
    for task, first in models[names[0]]["tasks"].items():
        rows.append(
            {
                "measure": task,
                **{name: _cell(models[name]["tasks"][task]) for name in names},
                "chance": f"{first['chance']:.3f}",
                "items": str(first["items"]),
            }
        )
    return rows


def verdict(scores: Mapping[str, Any]) -> str:
    """Which benchmarks say something, in one sentence."""
    told: dict[str, bool] = {}
    for model in scores["models"].values():
        for task, score in model["tasks"].items():
            told[task] = told.get(task, False) or not score["is_chance"]
    above = sorted(task for task, said in told.items() if said)
    at_chance = sorted(task for task, said in told.items() if not said)
    parts = []
    if above:
        parts.append(f"Away from chance for at least one model: {', '.join(above)}.")
    if at_chance:
        parts.append(
            f"Within {SURE:g} standard errors of chance, so they say nothing of these models: {', '.join(at_chance)}."
        )
    return " ".join(parts)


def _cell(score: Mapping[str, Any]) -> str:
    shown = f"{score['normalised_accuracy']:.3f} ± {score['normalised_accuracy_stderr']:.3f}"
    return f"{shown} (chance)" if score["is_chance"] else shown
