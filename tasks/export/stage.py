"""The `export` stage: the aligned model in every asked-for format, proved, with its card."""

from __future__ import annotations

import json
import sys
from typing import Any

from storage.artifact import Artifact
from storage.tokens import open_tokens
from tasks.checkpoint import check_tokenizer
from tasks.export.card import model_card, parity_rows
from tasks.export.config import ExportConfig
from tasks.launch import run_child, training_environment
from tasks.output import Output
from tasks.stage import stage

MODULE = "tasks.export.run"


@stage(version=1)
def export(config: ExportConfig, model: Artifact, scores: Artifact, validation: Artifact, out: Output) -> None:
    """Write the release: weights in every format, README.md (the model card), scores, parity and lineage.

    Each format is loaded in the runtime that it is for (transformers, bitsandbytes, llama.cpp) and compared with the
    checkpoint; outside its tolerance there is no release (ParityError).
    """
    from tasks.export.run import ExportSpec

    digest = check_tokenizer(model.path)
    shards = validation.files("*.tokens")
    for shard in shards:
        open_tokens(shard, tokenizer_digest=digest)
    spec = ExportSpec(
        config=config,
        runtime=out.runtime,
        model=model.path.resolve(),
        tokenizer_digest=digest,
        validation=[path.resolve() for path in shards],
        out=out.path.resolve(),
        result=(out.scratch / "result.json").resolve(),
    )
    path = out.scratch / "spec.json"
    path.write_text(spec.model_dump_json())

    def on_line(line: dict[str, Any]) -> None:
        out.progress(line["done"], len(config.formats), "formats", line["note"])

    out.progress(0, len(config.formats), "formats", "starting")
    run_child(
        [sys.executable, "-m", MODULE, str(path)],
        out=out,
        environment=training_environment(out),
        log=out.scratch / "export.log",
        on_line=on_line,
    )
    lineage = {"model": model.digest, "tokenizer": digest, "scores": scores.digest, "validation": validation.digest}
    _write(json.loads(spec.result.read_text()), model, scores, lineage, config, out)


def _write(
    result: dict[str, Any],
    model: Artifact,
    scores: Artifact,
    lineage: dict[str, str],
    config: ExportConfig,
    out: Output,
) -> None:
    measured = json.loads((scores.path / "scores.json").read_text())
    shape = json.loads((model.path / "config.json").read_text())
    out.fact(**result.pop("facts"))
    for name, value in {"scores": measured, "parity": result, "lineage": lineage}.items():
        (out.path / f"{name}.json").write_text(json.dumps(value, indent=2) + "\n")
    (out.path / "README.md").write_text(model_card(shape, measured, result, lineage, config.licence), encoding="utf-8")
    rows = parity_rows(result)
    out.table("Release", rows)
    sizes = ", ".join(f"{name} {proof['bytes'] / 1e6:.1f} MB" for name, proof in result["formats"].items())
    out.count(formats=result["formats"], summary=sizes)
