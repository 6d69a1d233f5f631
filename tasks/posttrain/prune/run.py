"""The child of `prune`: `python -m tasks.posttrain.prune.run SPEC` measures a model, cuts it and measures it again."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from models.conversation import TemplateFaultError, render
from models.likelihood import mean_loss
from models.pretrained import context_of, load_pretrained
from models.tokenizer import copy_tokenizer, load_tokenizer
from storage.errors import EmptyOutput
from storage.shards.lines import read_json_lines
from tasks.children.child import emit, run_as_child
from tasks.children.spec import ChildSpec
from tasks.posttrain.prune.config import PruneConfig
from tasks.posttrain.prune.cut import check_sizes, choose, cut
from tasks.posttrain.prune.importance import importance

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class PruneSpec(ChildSpec):
    """Written as JSON by the stage."""

    config: PruneConfig
    model: Path
    rows: list[Path]


def run(path: Path) -> None:
    """Write model/, and the layers kept, the parameters, the loss and the speed before and after as the result."""
    spec = PruneSpec.model_validate_json(path.read_text())
    torch.set_num_threads(spec.runtime.compute.cpu_threads())
    model = load_pretrained(spec.model).eval()
    check_sizes(spec.config, model.config)
    rows = _render_rows(spec, context_of(model.config))
    calibration, measured = rows[: spec.config.calibration_rows], rows[spec.config.calibration_rows :]
    emit(done=1, note="importance")
    measures = importance(model, calibration)
    kept = choose(spec.config, model.config, measures)
    smaller = cut(model, spec.config, kept)
    emit(done=2, note="loss")
    before, after = _measure(model, measured), _measure(smaller, measured)
    smaller.save_pretrained(spec.out / "model")
    copy_tokenizer(spec.model, spec.out / "model")
    spec.finish(
        {
            "influence": [round(value, 6) for value in measures.layers.tolist()],
            "kept_layers": kept.layers,
            "parameters": [sum(value.numel() for value in one.parameters()) for one in (model, smaller)],
            "loss": [before["loss"], after["loss"]],
            "tokens_per_second": [before["speed"], after["speed"]],
        }
    )


def _render_rows(spec: PruneSpec, context: int) -> list[list[int]]:
    """The tokens of conversations that fit the context, in an order drawn from the conversations' ids."""
    tokenizer = load_tokenizer(spec.model)
    most, rendered = spec.config.calibration_rows + spec.config.measured_rows, []
    drawn = sorted(
        (row for file in spec.rows for row in read_json_lines(file)),
        key=lambda row: hashlib.sha256(f"prune {row['id']}".encode()).digest(),
    )
    for row in drawn:
        try:
            ids = render(tokenizer, row["messages"])["input_ids"]
        except TemplateFaultError:
            continue
        if 1 < len(ids) <= context:
            rendered.append(ids)
        if len(rendered) == most:
            break
    if len(rendered) <= spec.config.calibration_rows:
        raise EmptyOutput(
            f"{len(rendered):,} conversations fit the context, but prune needs {spec.config.calibration_rows:,} to "
            "calibrate on, and more to measure the loss on.",
            "Lower prune.calibration_rows, or provide more instructions.",
        )
    return rendered


def _measure(model: PreTrainedModel, rows: Sequence[Sequence[int]]) -> dict[str, float]:
    """The mean loss over all tokens in nats, and the tokens a second of the forward passes."""
    total, tokens, started = 0.0, 0, time.perf_counter()
    for ids, targets in _windows(rows):
        total += float(mean_loss(model, ids, targets)) * targets.numel()
        tokens += targets.numel()
    return {"loss": total / tokens, "speed": tokens / (time.perf_counter() - started)}


def _windows(rows: Sequence[Sequence[int]]) -> Iterator[tuple[Any, Any]]:
    for row in rows:
        ids = torch.tensor([list(row)])
        yield ids[:, :-1], ids[:, 1:]


if __name__ == "__main__":
    run_as_child(run)
