"""Scores for people and programs: every number with its chance level, and a verdict in words."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasks.significance.chance import SURE, against_chance

DIGITS = 6  # that float32 sums repeat on one machine
SUBSETS = ("clean", "dirty")
BESIDE = {
    "too_long": "were left out, as a choice alone is longer than the context",
    "cut": "are longer than the context with their examples, and lost their beginning",
    "replaced": "were among the examples that the harness drew for them, and got others",
}
NONE = "–"  # for a model that can't be asked
ABOVE, BELOW, SAME = "above chance", "below chance", "no better than chance"


def judged(score: Mapping[str, Any], subsets: Mapping[str, Any]) -> dict[str, Any]:
    """The score of one model in one benchmark as scores.json has it: its headline with its error and its verdict, and
    all other metrics. `subsets` are the scores of clean and dirty questions."""
    headline = score["headline"]
    value = {"chance": score["chance"], "items": score["items"], **score["metrics"][headline]}
    parts = {
        kind: _worth({**part, "higher_is_better": value["higher_is_better"]}) if kind in SUBSETS else part
        for kind, part in subsets.items()
    }
    more = {name: score[name] for name in ("subtasks", *BESIDE, "faults") if score.get(name)}
    return {"metric": headline, **_worth(value), **parts, "metrics": score["metrics"], **more}


def score_rows(scores: Mapping[str, Any]) -> list[dict[str, str]]:
    """A row per measure and a column per model, with a dash if it can't be asked. Separate rows for clean and dirty
    questions, if some are dirty."""
    models = scores["models"]
    names = list(models)
    found = {name: models[name]["bits_per_byte"] for name in names}
    bits = {name: NONE if value is None else f"{value:.3f}" for name, value in found.items()}
    rows = [{"measure": "bits per byte", **bits, "chance": "", "items": "", "dirty": ""}]
    for task in dict.fromkeys(task for name in names for task in models[name]["tasks"]):
        measured = {name: models[name]["tasks"].get(task) for name in names}
        first = next(score for score in measured.values() if score)
        rows.append({**_row(f"{task}, {first['metric']}", measured), "dirty": _dirty(first)})
        for kind in SUBSETS:
            if kind in first:
                part = {name: score and score[kind] for name, score in measured.items()}
                rows.append({**_row(f"{task}, {kind}", part), "dirty": ""})
    return rows


def verdict(scores: Mapping[str, Any]) -> str:
    """Sentences on which benchmarks are informative, and which questions each lost."""
    told: dict[str, set[str]] = {}
    for model in scores["models"].values():
        for task, score in model["tasks"].items():
            if score["worth"]:
                told.setdefault(task, set()).add(score["worth"])
    parts = []
    for worth, sentence in (
        (ABOVE, "Above chance for at least one model: {}."),
        (BELOW, "Below chance for at least one model, so that something but knowledge decides: {}."),
    ):
        named = sorted(task for task, found in told.items() if worth in found)
        parts += [sentence.format(", ".join(named))] if named else []
    at_chance = sorted(task for task, found in told.items() if found == {SAME})
    if at_chance:
        parts.append(
            f"Within {SURE:g} standard errors of chance, so they say nothing of these models: {', '.join(at_chance)}."
        )
    if any("dirty" in task for model in scores["models"].values() for task in model["tasks"].values()):
        parts.append("Dirty are questions of whose text the training documents hold a part.")
    return " ".join([*parts, *_beside(scores)])


def _beside(scores: Mapping[str, Any]) -> Iterator[str]:
    """Sentences that a reader of a score must know about its questions and answers."""
    for name, model in scores["models"].items():
        for task, score in model["tasks"].items():
            for what, told in BESIDE.items():
                if number := score.get(what):
                    yield f"{name} in {task}: {number:,} questions {told}."
            if faults := score.get("faults"):
                kinds = ", ".join(f"{number:,} {fault}" for fault, number in faults.items())
                yield f"{name} in {task}: of the endpoint's answers {kinds}."


def _worth(score: Mapping[str, Any]) -> dict[str, Any]:
    """The score, rounded, with its verdict against chance."""
    rounded = {key: round(value, DIGITS) if isinstance(value, float) else value for key, value in score.items()}
    chance = score["chance"]
    if chance is None:
        return {**rounded, "worth": None}
    return {**rounded, "worth": against_chance(score["value"], chance, score["items"], score["stderr"])}


def _row(measure: str, scores: Mapping[str, Mapping[str, Any] | None]) -> dict[str, str]:
    first = next(score for score in scores.values() if score)
    chance = "" if first["chance"] is None else f"{first['chance']:.3f}"
    return {
        "measure": measure,
        **{name: _cell(score) if score else NONE for name, score in scores.items()},
        "chance": chance,
        "items": str(first["items"]),
    }


def _dirty(score: Mapping[str, Any]) -> str:
    if score["dirty_items"] is None:
        return "unchecked"
    short = f" ({score['unchecked_items']} unchecked)" if score["unchecked_items"] else ""
    return f"{score['dirty_items'] or 'none'}{short}"


def _cell(score: Mapping[str, Any]) -> str:
    shown = f"{score['value']:.3f}"
    if score["stderr"] is not None:
        shown += f" ± {score['stderr']:.3f}"
    return {SAME: f"{shown} (chance)", BELOW: f"{shown} (below)"}.get(score["worth"], shown)


def compared(prompts: Sequence[str], given: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """A row per prompt and a column per model with its answer, as Markdown shows it."""
    return [
        {"prompt": _in_a_cell(prompt), **{name: _in_a_cell(answers[number]) for name, answers in given.items()}}
        for number, prompt in enumerate(prompts)
    ]


def _in_a_cell(text: str) -> str:
    return html.escape(" ".join(text.split()), quote=False)
