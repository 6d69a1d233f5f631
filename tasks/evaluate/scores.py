"""Scores for people and programs: every number with its chance level, and a note where it is no better than that.

The headline is the accuracy with each choice's likelihood divided by its length in bytes (`acc_norm` of the harness):
without that, a small model prefers short choices.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

DIGITS = 6  # what float32 sums repeat on one machine
SUBSETS = ("clean", "dirty")
SURE = 2.0  # standard errors from chance from which a score is informative


def assemble(result: Mapping[str, Any]) -> dict[str, Any]:
    """{"models": {name: {"bits_per_byte", "tasks": {task: {…, "chance", "is_chance"}}}}}, rounded.

    A task with dirty questions holds the same measures for the "clean" and the "dirty" ones.
    """
    models = {}
    for name, measured in result["models"].items():
        tasks = {}
        for task, scores in sorted(measured["tasks"].items()):
            about = result["benchmarks"][task]
            subsets = {kind: _judged(scores[kind]) for kind in SUBSETS if kind in scores}
            whole = {key: value for key, value in scores.items() if key not in SUBSETS}
            tasks[task] = {**_judged({**whole, "chance": about["chance"]}), **subsets}
            tasks[task] |= {"too_long": about["too_long"]} if about["too_long"] else {}
        models[name] = {"bits_per_byte": round(measured["bits_per_byte"], DIGITS), "tasks": tasks}
    return {"models": models}


def side_by_side(scores: Mapping[str, Any]) -> list[dict[str, str]]:
    """One row per measure, one column per model; separate rows for clean and dirty questions, where some are dirty."""
    models = scores["models"]
    names = list(models)
    bits = {name: f"{models[name]['bits_per_byte']:.3f}" for name in names}
    rows = [{"measure": "bits per byte", **bits, "chance": "", "items": "", "dirty": ""}]
    for task in models[names[0]]["tasks"]:
        measured = {name: models[name]["tasks"][task] for name in names}
        rows.append({**_row(task, measured), "dirty": _dirty(measured[names[0]])})
        for kind in SUBSETS:
            if kind in measured[names[0]]:
                part = {name: measured[name][kind] for name in names}
                rows.append({**_row(f"{task}, {kind}", part), "dirty": ""})
    return rows


def verdict(scores: Mapping[str, Any]) -> str:
    """Which benchmarks are informative, in one sentence."""
    informative: dict[str, bool] = {}
    for model in scores["models"].values():
        for task, score in model["tasks"].items():
            informative[task] = informative.get(task, False) or not score["is_chance"]
    above = sorted(task for task, is_so in informative.items() if is_so)
    at_chance = sorted(task for task, is_so in informative.items() if not is_so)
    parts = []
    if above:
        parts.append(f"Away from chance for at least one model: {', '.join(above)}.")
    if at_chance:
        parts.append(
            f"Within {SURE:g} standard errors of chance, so they say nothing of these models: {', '.join(at_chance)}."
        )
    if any("dirty" in task for model in scores["models"].values() for task in model["tasks"].values()):
        parts.append("Dirty are questions of whose text the training documents hold a part.")
    return " ".join(parts)


def _judged(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Rounded, and whether the score could be chance."""
    rounded = {key: value if value is None else round(value, DIGITS) for key, value in scores.items()}
    chance = scores["chance"]
    # A few answers that are all alike have no standard error of their own; guessing has one
    error = max(scores.get("normalised_accuracy_stderr", 0), math.sqrt(chance * (1 - chance) / scores["items"]))
    return {**rounded, "is_chance": bool(abs(scores["normalised_accuracy"] - chance) < SURE * error)}


def _row(measure: str, scores: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    first = next(iter(scores.values()))
    cells = {name: _cell(score) for name, score in scores.items()}
    return {"measure": measure, **cells, "chance": f"{first['chance']:.3f}", "items": str(first["items"])}


def _dirty(score: Mapping[str, Any]) -> str:
    if score["dirty_items"] is None:
        return "unchecked"
    short = f" ({score['unchecked_items']} unchecked)" if score["unchecked_items"] else ""
    return f"{score['dirty_items'] or 'none'}{short}"


def _cell(score: Mapping[str, Any]) -> str:
    shown = f"{score['normalised_accuracy']:.3f}"
    if "normalised_accuracy_stderr" in score:
        shown += f" ± {score['normalised_accuracy_stderr']:.3f}"
    return f"{shown} (chance)" if score["is_chance"] else shown


def compared(prompts: Sequence[str], given: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """A row a prompt and a column a model, of what each answered; as Markdown shows it."""
    return [
        {"prompt": _in_a_cell(prompt), **{name: _in_a_cell(answers[number]) for name, answers in given.items()}}
        for number, prompt in enumerate(prompts)
    ]


def _in_a_cell(text: str) -> str:
    return html.escape(" ".join(text.split()), quote=False)
