"""The head of a model card, which hubs read: YAML between two lines of dashes.

Fields follow the hub's specification of model cards. Scores go into its `model-index`, each with its standard error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import yaml

from tasks.export.card.provenance import Provenance

TASK = "text-generation"
# Licences that the hub knows by their SPDX name, in lower case and without -only or -or-later
_HUB_LICENCES = """
afl-3.0 agpl-3.0 apache-2.0 artistic-2.0 bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc-by-2.0 cc-
by-2.5 cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0
cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 cdla-
permissive-2.0 cdla-sharing-1.0 ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 gpl-2.0 gpl-3.0 isc lgpl-2.1
lgpl-3.0 lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1 osl-3.0 pddl postgresql unlicense wtfpl zlib
"""


def front_matter(
    name: str, weights_licence: str | None, provenance: Provenance | None, scores: Mapping[str, Any] | None
) -> str:
    """The whole head. Unknown fields are left out: no licence, language or data set is guessed."""
    known = provenance or Provenance(link="")
    fields: dict[str, Any] = {
        **_licence(weights_licence),
        "language": known.languages,
        "library_name": "transformers",
        "pipeline_tag": TASK,
        "tags": ["gristmill", "conversational"],
        "base_model": known.base_repository,
        "datasets": sorted({source.dataset for source in known.sources if source.dataset}),
        "model-index": [{"name": name, "results": results}] if (results := _results(scores, known.link)) else [],
    }
    kept = {field: value for field, value in fields.items() if value}
    text = yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=120)
    return f"---\n{text}---"


def released_scores(scores: Mapping[str, Any], link: str) -> Mapping[str, Any]:
    """The scores of the released model, or of the last model measured if the link is unknown."""
    models: Mapping[str, Mapping[str, Any]] = scores["models"]
    return models.get(link) or list(models.values())[-1]


def _licence(weights: str | None) -> dict[str, str]:
    """A single licence under the hub's name for it, or `other` if the hub can't name it."""
    if weights is None:
        return {}
    spdx = weights.lower()
    plain = spdx.removesuffix("-only").removesuffix("-or-later")
    named = next((name for name in (spdx, plain, spdx.removesuffix("-1.0")) if name in _HUB_LICENCES.split()), None)
    if named is None or spdx.endswith("-or-later"):
        return {"license": "other", "license_name": spdx.replace(" ", "-"), "license_link": "LICENSE"}
    return {"license": named}


def _results(scores: Mapping[str, Any] | None, link: str) -> list[dict[str, Any]]:
    if scores is None:
        return []
    model = released_scores(scores, link)
    results = [_result("held-out text", "bits_per_byte", {"value": model["bits_per_byte"]})]
    results += [_result(task, str(score["metric"]), score) for task, score in model["tasks"].items()]
    return [result for result in results if result is not None]


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
