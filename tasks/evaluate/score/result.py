"""The harness's results as two files: score.json, and items.jsonl with a line per question, for comparisons of models
question by question."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from storage.errors import ConfigError
from tasks.evaluate.score.config import ScoreConfig
from tasks.significance.estimate import codes_of, standard_error

SAME = 1e-6  # maximum difference, by rounding, of a metric that is the mean over questions
PASSED = "pass@1"
DIGITS = 9  # decimals written. Float32 sums are the same each time on one machine
HEADLINES = ("acc_norm", "acc", "exact_match", "pass@1", "prompt_level_strict_acc", "bits_per_byte")


def metric_name(metric: str, chosen: str) -> str:
    """A metric's name, with the name of the filter that extracted the answer from the text, if a task has any."""
    return metric if chosen == "none" else f"{metric},{chosen}"


def score_of(task: str, measured: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """{"task", "headline", "metrics": {name: {"value", "stderr", "higher_is_better"}}, "chance", "items", "subtasks",
    "versions", "shots"}. For a tag, which the harness doesn't aggregate, the metrics are means over all questions.
    """
    leaves = sorted(measured["samples"])
    whole = measured["results"].get(task)
    better = {name: value for leaf in leaves for name, value in measured["higher_is_better"][leaf].items()}
    metrics = _metrics(whole, better) if whole else _pooled(items, better)
    if not metrics:  # a group that the harness doesn't aggregate either
        metrics = _pooled(items, better)
    names = [name.partition(",")[0] for name in metrics]
    headline = next(
        (name for preferred in HEADLINES for name, bare in zip(metrics, names, strict=True) if bare == preferred),
        next(iter(metrics)),
    )
    return {
        "task": task,
        "headline": headline,
        "metrics": metrics,
        "chance": _chance(items, headline),
        "items": len(items),
        "subtasks": {leaf: _metrics(measured["results"][leaf], better) for leaf in leaves} if len(leaves) > 1 else {},
        "versions": {leaf: measured["versions"].get(leaf) for leaf in leaves},
        "shots": sorted({measured["n-shot"].get(leaf) or 0 for leaf in leaves}),
    }


def items_of(
    task: str, measured: Mapping[str, Any], *, named: bool, cluster: str | None = None, sampled: bool = False
) -> list[dict[str, Any]]:
    """A row per question: {"id", "cluster", "scores"}, and the reasons for the scores: the "target", "likelihoods" of
    the choices with their "bytes", or "answers", and the texts "taken" from those by filters. If they were `sampled`,
    also the number of answers "n" and of passing ones "c". Questions that aren't `named` have their number as id. Those
    with the same value in the column `cluster` form a cluster.

    Raises ConfigError for a missing column.
    """
    rows: dict[str, dict[str, Any]] = {}
    for leaf in sorted(measured["samples"]):
        for sample in measured["samples"][leaf]:
            number = sample["doc"]["id"] if named else sample["doc_id"]
            identity = str(number) if leaf == task else f"{leaf}/{number}"
            row = rows.setdefault(identity, {"id": identity, "cluster": _cluster(sample["doc"], cluster), "scores": {}})
            for metric in sample["metrics"]:
                value = _scalar(sample[metric])
                if value is not None:
                    row["scores"][metric_name(metric, sample["filter"])] = value
            row |= _answers(sample)
            if taken := _taken(sample):
                row.setdefault("taken", {})[sample["filter"]] = taken
            if sampled:  # pass@1 is the share that passes
                row |= {"n": len(row["answers"]), "c": round(sample[PASSED] * len(row["answers"]))}
    return list(rows.values())


def _cluster(row: Mapping[str, Any], column: str | None) -> str | None:
    if column is None:
        return None
    if column not in row:
        raise ConfigError(
            f"The questions lack the column {column}. Their columns: {', '.join(row)}.", "Correct `cluster`."
        )
    text = json.dumps(row[column], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def command_of(config: ScoreConfig, tasks: Sequence[str] = ()) -> str:
    """The harness's own command for the same measurement, for a group with these of its `tasks`. MODEL stands for the
    model's folder and FILES for a folder of definitions that name the data."""
    names = shlex.quote(",".join(tasks) or config.task)
    words = ["lm_eval run --model hf --model_args", f"pretrained=MODEL,dtype={config.dtype}"]
    words += ["--include_path FILES --tasks", names, "--batch_size", str(config.batch_size)]
    words += ["--num_fewshot", str(config.shots)] if config.shots is not None else []
    words += ["--limit", str(config.limit)] if config.limit is not None else []
    words += ["--apply_chat_template --fewshot_as_multiturn"] if config.chat else []
    if config.generation:
        words += ["--gen_kwargs", shlex.quote(json.dumps(config.generation))]
    seed = config.seed
    words += [f"--seed 0,{seed},{seed},{seed} --confirm_run_unsafe_code"]
    words += [f"# with repeats: {config.samples} and k: {config.k or [1]} in the definition"] if config.samples else []
    return " ".join(words)


def clustered(metrics: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The metrics with clustered errors, as questions of a cluster aren't independent draws. A metric that isn't a mean
    over questions keeps its error."""
    corrected = {}
    for name, metric in metrics.items():
        scored = [item for item in items if name in item["scores"]]
        values = np.array([item["scores"][name] for item in scored], np.float64)
        error = metric["stderr"]
        if len(values) and abs(values.mean() - metric["value"]) < SAME:
            known = standard_error(values, codes_of([item["cluster"] for item in scored]))
            error = None if known is None else round(known, DIGITS)
        corrected[name] = {**metric, "stderr": error}
    return corrected


def _answers(sample: Mapping[str, Any]) -> dict[str, Any]:
    """The model's answers as texts or the likelihoods of the choices, and the right answer, for a choice its number."""
    responses = [one for answer in sample["resps"] for one in answer]
    target = sample["target"]
    right = {"target": target if isinstance(target, int | str) else str(target)}
    if responses and isinstance(responses[0], str):
        return {"answers": responses, **right}
    if responses and isinstance(responses[0], list | tuple):
        sizes = [len(scored.encode()) for _, scored in sample["arguments"]]
        return {"likelihoods": [round(float(one[0]), 6) for one in responses], "bytes": sizes, **right}
    return {}  # a whole text, all of which is the target


def _taken(sample: Mapping[str, Any]) -> list[str]:
    """The texts that a filter extracted from the answers, empty without a filter."""
    if sample["filter"] == "none":
        return []
    filtered = [one if isinstance(one, list | tuple) else [one] for one in sample["filtered_resps"]]
    return [text for texts in filtered for text in texts if isinstance(text, str)]


def _scalar(value: Any) -> float | None:
    """A number as it is. A log-likelihood with its weight (bytes, words) becomes nats per unit."""
    if isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(part, int | float) for part in value):
        value = -value[0] / value[1] if value[1] else None
    if isinstance(value, list) and value and all(isinstance(part, bool | int | float) for part in value):
        value = sum(value) / len(value)
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return round(float(value), DIGITS)
    return None


def _metrics(result: Mapping[str, Any], better: Mapping[str, Any]) -> dict[str, Any]:
    metrics = {}
    for key, value in result.items():
        name, _, chosen = key.partition(",")
        if not chosen or name.endswith("_stderr") or not isinstance(value, int | float) or not math.isfinite(value):
            continue
        error = result.get(f"{name}_stderr,{chosen}")
        metrics[metric_name(name, chosen)] = {
            "value": round(float(value), DIGITS),
            "stderr": round(error, DIGITS) if isinstance(error, float) and math.isfinite(error) else None,
            "higher_is_better": bool(better.get(name, True)),
        }
    return metrics


def _pooled(items: Sequence[Mapping[str, Any]], better: Mapping[str, Any]) -> dict[str, Any]:
    metrics = {}
    for name in sorted({name for item in items for name in item["scores"]}):
        values = np.array([item["scores"][name] for item in items if name in item["scores"]], np.float64)
        error = standard_error(values)
        metrics[name] = {
            "value": round(float(values.mean()), DIGITS),
            "stderr": None if error is None else round(error, DIGITS),
            "higher_is_better": bool(better.get(name.partition(",")[0], True)),
        }
    return metrics


def _chance(items: Sequence[Mapping[str, Any]], headline: str) -> float | None:
    """The accuracy of guessing: the mean of 1 / number of choices. None for shares and texts."""
    if headline not in ("acc", "acc_norm"):
        return None
    if any(item["scores"].get(headline) not in (0.0, 1.0) or len(item.get("likelihoods", ())) < 2 for item in items):
        return None
    return round(sum(1 / len(item["likelihoods"]) for item in items) / len(items), DIGITS)
