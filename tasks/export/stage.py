"""The `export` stage: writes the model in the profile's formats, proves each, and adds the card."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.kernels.virtual_tokens import virtual_tokens
from models.pretrained import load_config
from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.children.devices import check_device_here
from tasks.children.supervise import run_module
from tasks.export.card.licences import licence_text, notice
from tasks.export.card.modelfile import modelfile
from tasks.export.card.page import model_card, parity_rows
from tasks.export.card.speculation import speculation_rows
from tasks.export.config import HOLD_VIRTUAL, ExportConfig
from tasks.export.formats import FORMATS
from tasks.export.formats.config import write_config
from tasks.export.formats.gguf import Gguf
from tasks.export.formats.tokenizer import write_tokenizer
from tasks.significance.gates import check_gates
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tasks.training.chain import BASE
from tasks.training.held_out import held_out_shards
from tasks.training.model_folder import check_tokenizer

NUMBERS = re.compile(r"\[\n\s+([^\[\]{}\"]+)\n\s+\]")  # a list in indented JSON, whose strings don't hold a line feed


def check_here(config: ExportConfig, runtime: Runtime) -> None:
    """Raises ConfigError for a format that this machine can't write or prove, and for a missing GPU, before the first
    stage of a run starts."""
    check_device_here(runtime)
    for name in config.formats:
        if lacking := FORMATS[name].needs():
            raise ConfigError(f"The format {name} can't be made here.", lacking)


@stage(version=11, runtime=("compute",), check_here=check_here)
def export(
    config: ExportConfig,
    model: Artifact,
    scores: Artifact | None,
    validation: Artifact,
    beneath: Mapping[str, Artifact],
    draft: Artifact | None,
    out: Output,
) -> None:
    """Write the release: weights in every format, README.md (the model card), licences, scores, parity and lineage.

    Each format is loaded in the runtime that it is meant for and compared with the checkpoint on held-out text (token
    shards or benchmarks). If one is outside its tolerance, nothing is released (ParityError). Nor is anything if the
    evaluation missed one of its gates (GateError). `beneath` holds the existing model that was trained, as `base`, and
    for formats of adapters the adapters of the links from it to the released one, by name.
    `draft` is a small model that guesses for speculative decoding. It must not change any text (ParityError).
    """
    if scores:
        check_gates(scores)
    from tasks.export.run import ExportSpec

    digest = check_tokenizer(model.path)
    unfit = [name for name in config.formats if name not in HOLD_VIRTUAL]
    if unfit and virtual_tokens(load_config(model.path)):
        raise ConfigError(
            f"The model has virtual tokens before every text, which {', '.join(unfit)} can't hold.",
            f"Choose {' or '.join(HOLD_VIRTUAL)}.",
        )
    if beneath:
        check_tokenizer(beneath[BASE].path, expected=digest)
    if draft:
        check_tokenizer(draft.path, expected=digest)
    spec = ExportSpec(
        config=config,
        runtime=out.runtime,
        model=model.path.resolve(),
        tokenizer_digest=digest,
        validation=held_out_shards(validation, model.path, digest, out.scratch),
        base=beneath[BASE].path.resolve() if beneath else None,
        adapters=tuple(beneath[name].path.resolve() for name in sorted(beneath) if name != BASE),
        draft=draft.path.resolve() if draft else None,
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
    lineage |= {name if name == BASE else f"adapter {name}": beneath[name].digest for name in sorted(beneath)}
    lineage |= {"draft": draft.digest} if draft else {}
    _write(result, model, scores, lineage, config, out)


def check_formats(config: ExportConfig | None, model: Path, *, wide: bool = False) -> None:
    """Check that the formats of a release, if one is planned, can hold a folder's model. Doing so before training costs
    little, but with `wide`, for a model with weights beyond float16, all weights are read. Raises ConfigError for a
    format that can't."""
    for name in config.formats if config else ():
        FORMATS[name].check(model)
        if config and wide:
            FORMATS[name].check_range(model, config.dtype)


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
    facts, remarks = result.pop("facts"), result.pop("remarks")
    out.fact(**facts)
    written = {"scores": measured} if measured else {}
    for name, value in {**written, "parity": result, "lineage": lineage}.items():
        indented = json.dumps(value, indent=2)
        shorter = NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", indented)
        (out.path / f"{name}.json").write_text(f"{shorter}\n")
    if not (out.path / "tokenizer.json").exists() and any(isinstance(FORMATS[name], Gguf) for name in config.formats):
        write_tokenizer(model.path, out.path)  # a server renders prompts itself, and needs the context
        write_config(out.path, shape)
    ollama = modelfile(model.path, out.path, config.formats)
    card = model_card(config, shape, measured, result, lineage, modelfile=ollama is not None, remarks=remarks)
    pages = {
        "README.md": card,
        "NOTICE": notice(config.provenance, config.weights_licence, config.licence),
        "LICENSE": config.weights_licence and licence_text(config.weights_licence),
        "Modelfile": ollama,
    }
    for name, text in pages.items():
        if text is not None:
            (out.path / name).write_text(text, encoding="utf-8")
    speeds = facts["speeds"]
    rows = [
        {
            **row,
            "memory": f"{speeds[row['format']]['peak_memory'] / 1e6:,.0f} MB",
            "tokens/s read": f"{speeds[row['format']]['prompt']:,.0f}",
            "tokens/s written": f"{speeds[row['format']]['generation']:,.0f}",
        }
        for row in parity_rows(result)
    ]
    out.table("Release", rows)
    if "speculation" in result:
        out.fact_table("Speculative decoding", _guesses(result["speculation"], facts["speculation_seconds"]))
    sizes = ", ".join(f"{name} {proof['bytes'] / 1e6:.1f} MB" for name, proof in result["formats"].items())
    counts = {
        name: {key: value for key, value in proof.items() if key != "probes"}
        for name, proof in result["formats"].items()
    }
    out.count(formats=counts, summary=sizes)


def _guesses(counts: Mapping[str, Any], seconds: Mapping[str, Any]) -> list[dict[str, str]]:
    """The card's table, with the speed-up on this machine."""
    rows = []
    for row in speculation_rows(counts):
        without, with_guesses = seconds[row["format"]][row["guesses by"]]
        rows.append({**row, "speed-up": f"{without / with_guesses:.2f}"})
    return rows
