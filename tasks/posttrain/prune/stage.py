"""The `prune` stage: removes the layers, neurons, heads and channels that a model uses least."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage.artifact import Artifact
from tasks.children.supervise import run_module
from tasks.posttrain.prune.config import PruneConfig
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.training.adopted_model import check_model
from tasks.training.model_folder import check_tokenizer


def check_adopted(config: PruneConfig, folder: Artifact, inputs: Mapping[str, Artifact]) -> None:
    """Check that a folder made elsewhere has a model/ with the tokenizer of the model to cut.
    Raises DamagedArtifact, TokenizerMismatch."""
    check_model(folder, inputs["model"].path)


@stage(version=1, runtime=("compute",), adopted=check_adopted)
def prune(config: PruneConfig, model: Artifact, instructions: Artifact, out: Output) -> None:
    """Structured pruning without training (Men et al. 2024, Muralidharan et al. 2024). Heal the result by training it.

    Writes model/, and reports parameters, loss and speed before and after.
    """
    from tasks.posttrain.prune.run import PruneSpec

    check_tokenizer(model.path)
    spec = PruneSpec(
        config=config,
        runtime=out.runtime,
        model=model.path.resolve(),
        rows=[path.resolve() for path in instructions.files("*.jsonl")],
        scratch=out.scratch.resolve(),
        out=out.path.resolve(),
    )

    def on_line(line: dict[str, Any]) -> None:
        out.progress(line["done"], 3, "steps", line["note"])

    out.progress(0, 3, "steps", "starting")
    _report(run_module("tasks.posttrain.prune.run", spec, out, on_line=on_line, ranks=False, keeps="nothing"), out)


def _report(result: dict[str, Any], out: Output) -> None:
    (full, left), (before, after), speeds = result["parameters"], result["loss"], result["tokens_per_second"]
    kept = set(result["kept_layers"])
    out.table(
        "Layers",
        [
            {"layer": number, "block influence": f"{value:.4f}", "": "kept" if number in kept else "left out"}
            for number, value in enumerate(result["influence"])
        ],
    )
    rows = [
        {"measure": "parameters", "before": f"{full:,}", "after": f"{left:,}"},
        {"measure": "loss, nats a token", "before": f"{before:.4f}", "after": f"{after:.4f}"},
    ]
    out.table("Prune", rows)
    names = ("before", "after")
    speed = {name: f"{value:,.0f}" for name, value in zip(names, speeds, strict=True)}
    out.fact_table("Speed", [{"measure": "tokens a second, forward", **speed}])
    out.count(
        parameters=left,
        parameters_before=full,
        loss_before=round(before, 6),
        loss_after=round(after, 6),
        summary=f"{left:,} of {full:,} parameters, loss {before:.2f} to {after:.2f}",
    )
