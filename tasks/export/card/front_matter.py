"""The head of a model card, which hubs read: YAML between two lines of dashes.

Fields are those of the hub's specification of model cards; scores are its `model-index`, each with the standard error
that it was measured with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import yaml

from tasks.export.card.provenance import Provenance

TASK = "text-generation"
OWN_LICENCE = "LicenseRef-"  # begins an SPDX name of terms that SPDX doesn't list


def front_matter(
    name: str, weights_licence: str | None, provenance: Provenance | None, scores: Mapping[str, Any] | None
) -> str:
    """The whole head. What is not known is not there: no licence, language or data set is guessed."""
    told = provenance or Provenance(link="")
    fields: dict[str, Any] = {
        **_licence(weights_licence),
        "language": told.languages,
        "library_name": "transformers",
        "pipeline_tag": TASK,
        "tags": ["gristmill", "conversational"],
        "base_model": told.base_repository,
        "datasets": sorted({source.dataset for source in told.sources if source.dataset}),
        "model-index": [{"name": name, "results": results}] if (results := _results(scores, told.link)) else [],
    }
    kept = {field: value for field, value in fields.items() if value}
    text = yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=120)
    return f"---\n{text}---"


def released_scores(scores: Mapping[str, Any], link: str) -> Mapping[str, Any]:
    """The scores of the released model; of the last that was measured where the link is not known."""
    models: Mapping[str, Mapping[str, Any]] = scores["models"]
    return models.get(link) or list(models.values())[-1]


def _licence(weights: str | None) -> dict[str, str]:
    """A single licence under the hub's name for it, which is SPDX's in lower case; `other` for what it can't name."""
    if weights is None:
        return {}
    if " " in weights or weights.startswith(OWN_LICENCE):
        return {"license": "other", "license_name": weights.replace(" ", "-").lower(), "license_link": "LICENSE"}
    return {"license": weights.lower()}


def _results(scores: Mapping[str, Any] | None, link: str) -> list[dict[str, Any]]:
    if scores is None:
        return []
    model = released_scores(scores, link)
    found = [_result("held-out text", "bits_per_byte", {"value": model["bits_per_byte"]})]
    found += [_result(task, str(score["metric"]), score) for task, score in model["tasks"].items()]
    return [one for one in found if one is not None]


def _result(dataset: str, metric: str, score: Mapping[str, Any]) -> dict[str, Any] | None:
    value = score["value"]
    if value is None or not math.isfinite(value):
        return None
    known = {name: score[name] for name in ("stderr", "items", "chance") if score.get(name) is not None}
    measured = {"type": metric, "name": metric.replace("_", " "), "value": value}
    return {
        "task": {"type": TASK},
        "dataset": {"type": dataset.replace(" ", "-"), "name": dataset},
        "metrics": [{**measured, "args": known} if known else measured],
    }
