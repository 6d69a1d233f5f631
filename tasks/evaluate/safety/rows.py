"""Safety of several models side by side, as rows of the table of their scores, and as tasks for comparisons question by
question."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from storage.artifact import Artifact
from storage.errors import DamagedArtifact, make_again
from storage.shards.lines import parse_json, read_json_lines
from tasks.evaluate.safety.report import FILE
from tasks.evaluate.safety.shares import cell

Found = Mapping[str, Any]


class Measure(NamedTuple):
    """A number of safety: its name in tables, the file and the metric of its items, and which way is better."""

    name: str
    items: str
    metric: str
    higher_is_better: bool
    number: Mapping[str, Any] | None


def load_safety(artifact: Artifact) -> dict[str, Any]:
    """The measurements of a model. Raises DamagedArtifact for a file that doesn't hold them."""
    try:
        found = parse_json((artifact.path / FILE).read_bytes())
        [*measures(found)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedArtifact(f"{artifact.path / FILE} is damaged: {error}.", make_again("safety")) from error
    return dict(found)


def measures(found: Found) -> Iterator[Measure]:
    """Yields the numbers of one model, in the order of tables. More refusals are better for harmful prompts and worse
    for harmless ones."""
    if one := found.get("continuations"):
        at = f"{one['threshold']:g}"
        yield Measure(
            "expected maximum toxicity", "continuations", "maximum_toxicity", False, one["expected_maximum_toxicity"]
        )
        yield Measure(f"prompts with toxicity from {at}", "continuations", "toxic", False, one["toxic_prompts"])
        yield Measure(
            "prompts with personal data", "continuations", "personal_data", False, one["personal_data_prompts"]
        )
    if one := found.get("memorisation"):
        for split, name in (("training", "training"), ("held_out", "held-out")):
            told = one[split]
            yield Measure(
                f"extractable {name} documents", f"memorisation-{split}", "extractable", False, told["extractable"]
            )
            recalled = told["recalled"] if told["documents"] else None
            yield Measure(f"tokens recalled, {name}", f"memorisation-{split}", "recalled", False, recalled)
    for name, told in found.get("refusals", {}).items():
        yield Measure(f"{name} prompts refused", f"refusals-{name}", "refused", name == "harmful", told["refused"])
    for condition, told in found.get("bias", {}).items():
        yield Measure(f"BBQ accuracy, {condition}", "bias", "acc", True, told["accuracy"])
        yield Measure(f"BBQ bias score, {condition}", "bias", "biased", False, told["bias"])


def safety_rows(found: Mapping[str, Found]) -> list[dict[str, str]]:
    """A row per measure and a column per model, with the columns of the table of scores."""
    names = list(found)
    by_model = {name: {one.name: one for one in measures(found[name])} for name in names}
    rows = []
    for measure in dict.fromkeys(measure for told in by_model.values() for measure in told):
        told = {name: by_model[name][measure] for name in names if measure in by_model[name]}
        items = next((one.number["items"] for one in told.values() if one.number), 0)
        cells = {name: cell(dict(told[name].number or {}) or None) if name in told else "" for name in names}
        rows.append({"measure": measure, **cells, "chance": "", "items": str(items), "dirty": ""})
    return rows


def safety_tasks(artifact: Artifact) -> dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]:
    """The score of each part, as `scores.json` has that of a task, and its items, by name: gates and comparisons treat
    safety like any benchmark. Bias scores are left out, as they aren't a mean over questions."""
    grouped: dict[str, list[Measure]] = {}
    for one in measures(load_safety(artifact)):
        if one.number is not None and one.metric != "biased" and one.items != "bias":
            grouped.setdefault(one.items, []).append(one)
    tasks = {}
    for name, group in grouped.items():
        items = [
            {"id": str(row["id"]), "cluster": row["cluster"], "scores": row["scores"]}
            for row in read_json_lines(artifact.path / "items" / f"{name}.jsonl")
        ]
        metrics = {
            one.metric: {
                "value": one.number["value"],
                "stderr": one.number["stderr"],
                "higher_is_better": one.higher_is_better,
            }
            for one in group
            if one.number is not None
        }
        headline = group[0].metric
        score = {
            "metric": headline,
            "chance": None,
            "worth": None,
            "items": len(items),
            **metrics[headline],
            "metrics": metrics,
            "dirty_items": None,
            "data_digest": _digest(items),
            "version": "1",
        }
        tasks[f"safety-{name}"] = (score, items)
    return tasks


def _digest(items: list[dict[str, Any]]) -> str:
    """A digest of the prompts' ids, as scores on other prompts don't compare."""
    import hashlib

    return hashlib.sha256(json.dumps([item["id"] for item in items]).encode()).hexdigest()


__all__ = ["Measure", "load_safety", "measures", "safety_rows", "safety_tasks"]
