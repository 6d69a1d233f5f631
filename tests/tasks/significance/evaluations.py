"""Evaluations as their stage leaves them, made of given answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Scores = Sequence[float]


def write_evaluation(
    folder: Path,
    models: Mapping[str, Mapping[str, Scores]],
    *,
    metric: str = "acc",
    better: bool = True,
    bits: Mapping[str, float] | None = None,
    clusters: Sequence[str | None] | None = None,
    **about: Any,
) -> Path:
    """`models` has the scores of each task of each model, whose questions are q0, q1, …; `about` enters every task."""
    written: dict[str, Any] = {}
    for model, tasks in models.items():
        written[model] = {"bits_per_byte": (bits or {}).get(model, 1.5), "tasks": {}}
        for task, scores in tasks.items():
            one = {"value": sum(scores) / len(scores), "stderr": 0.01, "higher_is_better": better}
            written[model]["tasks"][task] = {
                "metric": metric,
                "chance": 0.25,
                "items": len(scores),
                **one,
                "metrics": {metric: one},
                **about,
            }
            rows = [
                {"id": f"q{n}", "cluster": clusters[n] if clusters else None, "scores": {metric: score}}
                for n, score in enumerate(scores)
            ]
            path = folder / "items" / model / f"{task}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "scores.json").write_text(json.dumps({"models": written}))
    return folder


def right(many: int, of: int = 200) -> list[float]:
    """As many right answers, the first ones."""
    return [1.0] * many + [0.0] * (of - many)
