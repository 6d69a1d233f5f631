"""The `pretrain` stage: checks that its inputs match, trains in child processes, reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from models.presets import Shape, count_parameters, derive, explain, flops_per_token
from models.tokenizer import tokenizer_digest
from storage.artifact import Artifact
from tasks.base.more_rows import add_rows
from tasks.pretrain.base import report_change, shape_of_base
from tasks.pretrain.check import check_here, check_runtime
from tasks.pretrain.checkpoints.branches import branching
from tasks.pretrain.checkpoints.disk import check_room
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.fim_tokens import read_fim_tokens
from tasks.pretrain.healing import supervisor
from tasks.pretrain.healing.supervisor import train_healed
from tasks.pretrain.insight.page import Page
from tasks.pretrain.insight.settings import check_insight
from tasks.pretrain.long_context.report import report_long_context
from tasks.pretrain.spec import TrainSpec
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.training.adopted_model import check_model
from tasks.training.device_lock import own_turn
from tasks.training.logs import read_log
from tasks.training.model_folder import check_shard
from tasks.training.plots import plot_loss
from tasks.training.recovery.remote_checkpoints import fetch_newest


def check_adopted(config: PretrainConfig, folder: Artifact, inputs: Mapping[str, Artifact]) -> None:
    """Check that an adopted folder has a model/ with the tokenizer of the token shards. Raises DamagedArtifact and
    TokenizerMismatch."""
    check_model(folder, inputs["tokenizer"].path)


@stage(
    version=2,
    runtime=("data", "compute", "training", "pretrain", "tracking"),
    device_lock=own_turn,
    check=check_runtime,
    check_here=check_here,
    adopted=check_adopted,
)
def pretrain(config: PretrainConfig, tokens: Artifact, tokenizer: Artifact, base: Artifact | None, out: Output) -> None:
    """Train a decoder on token shards, by next-token prediction: from scratch, or on from a base, whose folder is then
    the `tokenizer`. With a `base`, the `tokenizer` has further tokens for it.

    Reads train/ and validation/ of the token shards. Writes model/ in the format of transformers, log.jsonl with a row
    a step, loss.png and samples.md. Killed at any instant, it resumes from its last checkpoint, bit for bit on a CPU.
    It recovers from divergence, lack of memory and processes that die or hang as healing/policy.py says, and lists the
    recoveries in the table "Events". Speeds, layer statistics and traces are written beside the artifact, to
    `out.aside`.

    Raises TokenizerMismatch for shards of another tokenizer, DamagedArtifact for shards with changed bytes, ConfigError
    for a base with a shorter context, or without what the settings need, and TrainingError, which says what to change,
    if it can't recover.
    """
    digest = tokenizer_digest(tokenizer.path)
    train, validation = tokens.files("train/*.tokens"), tokens.files("validation/*.tokens")
    with ThreadPoolExecutor(out.runtime.data.workers) as pool:  # here, so that the ranks needn't
        headers = list(pool.map(partial(check_shard, tokens=tokens, digest=digest), (*train, *validation)))
    start = None if config.model else tokenizer
    if base is not None:
        start = Artifact(out.scratch / "base", base.digest)
        add_rows(base.path, tokenizer.path, start.path)
    if start is not None:
        shape: Shape = shape_of_base(start.path, config, out.runtime.pretrain)
        config = config.model_copy(update={"context": config.context or shape.context})
    else:
        shape = derive(config.new_model, headers[0].vocab_size)
    spec = TrainSpec(
        config=config,
        runtime=out.runtime,
        shape=shape,
        steps=config.total_steps(replace(shape, context=config.sequence or shape.context)),
        tokens_digest=tokens.digest,
        tokenizer_digest=digest,
        train=[path.resolve() for path in train],
        validation=[path.resolve() for path in validation],
        tokenizer=tokenizer.path.resolve(),
        fim_tokens=read_fim_tokens(tokenizer.path, shape.vocab_size) if config.fim_rate else None,
        base=start and start.path.resolve(),
        base_digest=start.digest if start else "",
        extends=base and base.path.resolve(),
        scratch=out.scratch.resolve(),
        out=out.path.resolve(),
        aside=out.aside.resolve(),
        remote=out.remote,
    )
    check_insight(out.runtime, spec.steps)
    page = Page(spec, out)

    check_room(spec)
    fetch_newest(spec, out.note)

    def on_line(line: dict[str, Any]) -> None:
        if "note" in line:
            return out.note(line["note"])
        out.progress(line["step"], spec.steps, "steps", page.add(line))

    out.progress(0, spec.steps, "steps", "starting")
    with branching(spec, out, pretrain.source) as started:
        measured, healing = train_healed(started, out, on_line)
    rows = read_log(out.path / "log.jsonl")
    skipped = sum("skipped" in row for row in rows)
    if skipped:
        out.warn(f"{skipped} steps were skipped as their gradients overflowed in float16")
    plot_loss(rows, out.path / "loss.png", title=f"{shape.family}, {count_parameters(shape):,} parameters")
    _report(spec, measured, tokens, out)
    if spec.snapshot_steps:
        _report_snapshots(spec, rows, out)
    page.report(out)
    supervisor.report(healing, spec, out)
    supervisor.forget(spec)


def _report_snapshots(spec: TrainSpec, rows: Sequence[Mapping[str, Any]], out: Output) -> None:
    seen, samples = out.counts["tokens_seen"], spec.config.samples
    taken = [
        {
            "step": step,
            "tokens": seen * samples(step) // samples(spec.steps),
            "folder": f"snapshots/step-{step}",
            **_losses(rows[step - 1]),
        }
        for step in spec.snapshot_steps
    ]
    out.table("Snapshots", taken)


def _report(spec: TrainSpec, measured: dict[str, Any], tokens: Artifact, out: Output) -> None:
    config, shape = spec.config, spec.trained_shape
    samples = config.samples(spec.steps)
    computed, epochs = samples * shape.context, samples / measured["windows"]
    seen = computed - sum(row.get("padding", 0) for row in measured["sources"])
    out.fact(**measured["facts"])
    results = {name: round(measured[name], 6) for name in ("train_loss", "validation_loss", "validation_bits_per_byte")}
    trained = measured["trained"]
    out.count(
        parameters=count_parameters(shape),
        steps=spec.steps,
        tokens_seen=seen,
        epochs=round(epochs, 4),
        precision=measured["precision"],
        **results,
    )
    loss, bits = results["validation_loss"], results["validation_bits_per_byte"]
    said = [f"{count_parameters(shape):,} parameters", f"{seen:,} tokens, loss {loss:.2f}, {bits:.2f} bits a byte"]
    if trained is not None:
        out.count(**trained)
        said.insert(1, f"{trained['trainable_share']:.2%} of them trained")
        if config.adapter is not None and spec.extends is not None:
            out.note("there is no adapter/: the base lacks the new tokens, so it can't be laid over it. model/ has it")
    out.count(summary=", ".join(said))
    out.table("Shape", [{"name": name, "value": value, "rule": rule} for name, value, rule in explain(shape)])
    if config.mixture is not None:
        out.table("Samples by source", measured["sources"])
        left_out = [row["source"] for row in measured["sources"] if not row["served"]]
        if left_out:
            out.note(f"pretrain.mixture leaves out {', '.join(left_out)}")
    if measured["held_out"] is not None:
        report_change(measured["held_out"], tokens, out, extended=spec.extends is not None)
    if measured["long_context"] is not None:
        report_long_context(spec, measured["long_context"], out)
    if len(measured["weights"]) > 1:
        out.count(weights={name: round(loss, 6) for name, (loss, _) in measured["weights"].items()})
        out.table(
            "Weights",
            [
                {
                    "weights": name + " (model/)" * (name == config.final_weights),
                    "validation loss": f"{loss:.4f}",
                    "bits per byte": f"{bits:.4f}",
                }
                for name, (loss, bits) in measured["weights"].items()
            ],
        )
    if measured["packing"] is not None:
        _report_packing(measured["packing"], out)
    fim = measured["fim"]
    if fim is not None:
        out.count(fim=fim)
        out.table(
            "Fill in the middle",
            [
                {"measure": "documents rearranged", "value": f"{fim['rearranged_a_window']:.2f} per window"},
                {"measure": "cut off for FIM tokens", "value": f"{fim['cut_off_share']:.2%} of the tokens"},
            ],
        )
    flops, active = flops_per_token(shape) * computed, count_parameters(shape, active=True)
    each = "parameter" if active == count_parameters(shape) else "active parameter"
    out.table(
        "Training",
        [
            {"measure": "steps", "value": f"{spec.steps:,}"},
            *({"measure": name, "value": value} for name, value in _trained(trained).items()),
            {"measure": "tokens seen", "value": f"{seen:,} ({seen / active:.1f} per {each})"},
            {"measure": "epochs", "value": f"{epochs:.2f}"},
            {"measure": "compute", "value": f"{flops:.3g} FLOPs"},
            {"measure": "training loss, last steps", "value": f"{results['train_loss']:.3f} nats a token"},
            {"measure": "validation loss", "value": f"{results['validation_loss']:.3f} nats a token"},
            {"measure": "validation bits per byte", "value": f"{results['validation_bits_per_byte']:.3f}"},
        ],
    )


def _trained(trained: dict[str, Any] | None) -> dict[str, str]:
    if trained is None:
        return {}
    rows = {"parameters trained": f"{trained['trained_parameters']:,} of {trained['parameters']:,}"}
    if "merged_logit_difference" in trained:
        rows["largest difference of a logit, merged"] = f"{trained['merged_logit_difference']:.1e}"
    return rows


def _report_packing(rows: list[dict[str, Any]], out: Output) -> None:
    """Report padding and cut documents of one epoch of each source, and how many stream packing would have cut."""
    total = {name: sum(row[name] for row in rows) for name in rows[0] if name != "source"}
    shares = {name: total[name] / total["documents"] for name in ("cut", "cut_by_stream")}
    out.count(
        packing={
            "padding_share": round(total["padding"] / total["places"], 6),
            "cut_share": round(shares["cut"], 6),
            "cut_share_of_stream": round(shares["cut_by_stream"], 6),
            "too_short": total["too_short"],
        }
    )
    out.table(
        "Packing",
        [
            {
                "source": row["source"],
                "documents": row["documents"],
                "windows": row["windows"],
                "padding": f"{row['padding'] / row['places']:.2%}",
                "documents cut": f"{row['cut'] / row['documents']:.2%}",
                "cut by stream packing": f"{row['cut_by_stream'] / row['documents']:.2%}",
                "too short": row["too_short"],
            }
            for row in rows
        ],
    )


def _losses(row: Mapping[str, Any]) -> dict[str, str]:
    return {name: f"{row[name]:.3f}" if name in row else "" for name in ("loss", "validation_loss")}
