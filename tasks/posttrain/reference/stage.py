"""The stage `reference`: log-probabilities of the answers of preference pairs under the model that `dpo` starts from.

It has an artifact of its own, so that training holds only one model, and another loss recomputes nothing.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from storage.artifact import Artifact
from tasks.children.spec import ChildSpec
from tasks.children.supervise import run_module
from tasks.posttrain.reference.config import ReferenceConfig
from tasks.posttrain.rows.row_sources import Pairs, files_of
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.training.model_folder import check_tokenizer


class ReferenceSpec(ChildSpec):
    """Written as JSON by the stage."""

    config: ReferenceConfig
    model: Path
    rows: list[Path]


@stage(version=2, part_of="dpo", runtime=("compute", "training", "posttrain"))
def reference(config: ReferenceConfig, model: Artifact, preferences: Pairs, out: Output) -> None:
    """Log-probabilities of the preferred and the rejected answer of each pair, summed over the tokens of the answer,
    including the one that ends it.

    Writes reference.parquet: `id`, `tokens` (a digest of the rendered pair), `chosen`, `rejected`. Pairs that can't be
    trained on are dropped and counted, as in the training. On a CPU, the number of processes changes no bit of it.
    """
    check_tokenizer(model.path)
    spec = ReferenceSpec(
        config=config,
        runtime=out.runtime,
        model=model.path.resolve(),
        rows=files_of(preferences),
        scratch=out.scratch.resolve(),
        out=out.path.resolve(),
    )

    def on_line(line: dict[str, Any]) -> None:
        out.progress(line["done"], line["batches"], "batches")

    result = run_module("tasks.posttrain.reference.score", spec, out, on_line=on_line, keeps="nothing")
    removed = Counter(result["dropped"])
    out.account(what="pairs", documents_in=result["kept"] + removed.total(), kept=result["kept"], removed=removed)
    out.count(summary=f"{result['kept']:,} pairs")
    out.fact(**result["facts"])
