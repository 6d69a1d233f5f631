"""The `export` stage: the model in every format of the profile, proved, with its card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from storage.artifact import Artifact
from tasks.children.supervise import run_module
from tasks.evaluate.worth.gates import check_gates
from tasks.export.card import model_card, parity_rows
from tasks.export.config import ExportConfig
from tasks.export.formats import FORMATS
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.training.held_out import held_out_shards
from tasks.training.model_folder import check_tokenizer


@stage(version=4, runtime=("compute",))
def export(config: ExportConfig, model: Artifact, scores: Artifact | None, validation: Artifact, out: Output) -> None:
    """Write the release: weights in every format, README.md (the model card), scores, parity and lineage.

    Each format is loaded in the runtime that it is meant for and compared with the checkpoint on held-out text, which
    is token shards or benchmarks; when one is outside its tolerance, nothing is released (ParityError). Nor is anything
    when the evaluation did not meet one of its gates (GateError).
    """
    if scores:
        check_gates(scores)
    from tasks.export.run import ExportSpec

    digest = check_tokenizer(model.path)
    spec = ExportSpec(
        config=config,
        runtime=out.runtime,
        model=model.path.resolve(),
        tokenizer_digest=digest,
        validation=held_out_shards(validation, model.path, digest, out.scratch),
        scratch=out.scratch.resolve(),
        out=out.path.resolve(),
    )

    def on_line(line: dict[str, Any]) -> None:
        out.progress(line["done"], len(config.formats), "formats", line["note"])

    out.progress(0, len(config.formats), "formats", "starting")
    result = run_module("tasks.export.run", spec, out, on_line=on_line, ranks=False, keeps="nothing")
    lineage = {"model": model.digest, "tokenizer": digest}
    lineage |= {"scores": scores.digest} if scores else {}
    lineage |= {"validation": validation.digest}
    _write(result, model, scores, lineage, config, out)


def check_formats(config: ExportConfig | None, model: Path) -> None:
    """Ask of the formats of a release, if there is to be one, whether they can hold the model of a folder: it costs
    little before the model is trained. Raises ConfigError."""
    for name in config.formats if config else ():
        FORMATS[name].check(model)


def _write(
    result: dict[str, Any],
    model: Artifact,
    scores: Artifact | None,
    lineage: dict[str, str],
    config: ExportConfig,
    out: Output,
) -> None:
    measured = json.loads((scores.path / "scores.json").read_text()) if scores else None
    shape = json.loads((model.path / "config.json").read_text())
    out.fact(**result.pop("facts"))
    written = {"scores": measured} if measured else {}
    for name, value in {**written, "parity": result, "lineage": lineage}.items():
        (out.path / f"{name}.json").write_text(json.dumps(value, indent=2) + "\n")
    (out.path / "README.md").write_text(model_card(shape, measured, result, lineage, config.licence), encoding="utf-8")
    rows = parity_rows(result)
    out.table("Release", rows)
    sizes = ", ".join(f"{name} {proof['bytes'] / 1e6:.1f} MB" for name, proof in result["formats"].items())
    out.count(formats=result["formats"], summary=sizes)
