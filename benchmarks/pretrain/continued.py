"""`python -m benchmarks.pretrain.continued`: continued pretraining beside transformers' Trainer on the same batches.

Both train the base of a profile on the batches that our loader serves, in float32, with fused AdamW, the profile's
learning rates and gradient clipping, micro-batches of the same size, and the same threads. The losses of every step are
compared; the seconds of a step are medians. Start-up and the first step are not counted. Sides take turns, each in a
process of its own.

torch's cross-entropy of float32 logits is inexact on a CPU. For the first micro-batch of `continue` the gradients of
transformers are 1.3e-4 from those in float64, relative to their norm, and with a cross-entropy in float64 7.0e-6. Ours
are 6.7e-6 from them. So the losses are also compared with those of a Trainer whose cross-entropy is in float64. Only
these have to be equal.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from benchmarks.measure import DATA, ROOT, count, measure
from benchmarks.pretrain.answer import peak_bytes
from benchmarks.pretrain.data import continued_data_of
from profiles.load import load
from storage.shards.tokens import read_header
from tasks.children.environment import training_environment
from tasks.pretrain import PretrainConfig
from tasks.pretrain.base import shape_of_base
from tasks.pretrain.loader import open_loader
from tasks.pretrain.recipe.schedule import learning_rate
from tasks.pretrain.spec import TrainSpec
from tasks.stage import machine
from tasks.stage.runtime import ComputeRuntime, PretrainRuntime, Runtime, TrainingRuntime
from tasks.training.logs import read_log

SIDES = ("gristmill", "transformers Trainer")
EXACT = "Trainer, cross-entropy in float64"
EQUAL = 1e-5  # nats


def main() -> None:
    """Run the sides in turns, and print a table and the largest difference of the losses."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pretrain.continued", description=__doc__, formatter_class=raw
    )
    parser.add_argument("profile", nargs="?", default="continue", help="a profile with base and pretrain")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--runs", type=count, default=3, help="runs of each side (default 3)")
    parser.add_argument("--threads", type=int, default=machine.cores(), help="(default all cores)")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the store")
    parser.add_argument("--side", choices=(*SIDES, EXACT), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(_measured(options)))
        return
    variables = training_environment(ComputeRuntime(device="cpu", threads=options.threads))
    variables["PYTHONPATH"] = str(ROOT.parent)
    continued_data_of(options.profile, options.data.resolve())
    taken: dict[str, list[dict[str, Any]]] = {side: [] for side in (*SIDES, EXACT)}
    for number in range(options.runs):
        for side in taken if number == 0 else SIDES:
            print(f"run {number + 1}/{options.runs}: {side}", file=sys.stderr)
            command = [sys.executable, "-m", "benchmarks.pretrain.continued", *sys.argv[1:], "--side", side]
            taken[side].append(measure(command, variables).result)
    _show(options, taken)


def _show(options: argparse.Namespace, taken: dict[str, list[dict[str, Any]]]) -> None:
    print(f"\n{platform.machine()}, {options.threads} threads, {options.profile}, {options.steps} steps\n")
    print("| side | seconds a step | gristmill / it | peak memory (MB) | first loss | last loss |")
    print("|---|---|---|---|---|---|")
    seconds = {side: statistics.median(run["seconds"] for run in runs) for side, runs in taken.items()}
    for side, runs in taken.items():
        peak, losses = statistics.median(run["peak"] for run in runs) / 1e6, runs[0]["losses"]
        ratio = seconds[side] / seconds[SIDES[0]]
        print(f"| {side} | {seconds[side]:.2f} | {ratio:.2f} | {peak:,.0f} | {losses[0]:.5f} | {losses[-1]:.5f} |")
    ours, theirs, exact = (np.array(taken[side][0]["losses"]) for side in taken)
    reported, apart = np.abs(ours - theirs).max(), np.abs(ours - exact).max()
    print(f"\nLargest difference of the losses of {len(ours)} steps from the Trainer's: {reported:.1e} nats,")
    print(f"and with its cross-entropy in float64 {apart:.1e}")
    if apart > EQUAL:
        sys.exit(f"That is more than {EQUAL:g}.")


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    """The losses of every step, the median seconds of one, and the peak memory of this process. Both use AdamW, as the
    Trainer has no Muon."""
    torch.set_num_threads(options.threads)
    profile = load(options.profile)
    assert profile.pretrain is not None
    tokens, base = continued_data_of(options.profile, options.data.resolve())
    shape = shape_of_base(base, profile.pretrain, PretrainRuntime())
    config = profile.pretrain.model_copy(
        update={
            "context": profile.pretrain.context or shape.context,
            "optimizer": "adamw",
            "muon_learning_rate": None,
            "steps": options.steps,
            "validation_every": options.steps,
            "validation_tokens": 1,
            "sample_prompts": ("The",),
            "sample_tokens": 1,
        }
    )
    run = _ours if options.side == SIDES[0] else partial(_theirs, exact=options.side == EXACT)
    losses, seconds = run(config, tokens, base, profile.runtime.pretrain.micro_batch or 1, options.threads)
    return {"losses": losses, "seconds": statistics.median(seconds[1:]), "peak": peak_bytes()}


def _ours(
    config: PretrainConfig, tokens: Path, base: Path, micro_batch: int, threads: int
) -> tuple[list[float], list[float]]:
    """The losses of each step, and the seconds."""
    from tasks.pretrain.train import train

    shards = {split: sorted((tokens / split).glob("*.tokens")) for split in ("train", "validation")}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "out").mkdir()
        spec = TrainSpec(
            config=config,
            runtime=Runtime(
                compute=ComputeRuntime(device="cpu", threads=threads),
                training=TrainingRuntime(log_every=1, checkpoint_every=config.steps or 1, stop_grace_seconds=0),
                pretrain=PretrainRuntime(engine="ddp", micro_batch=micro_batch, preflight="never"),
            ),
            shape=shape_of_base(base, config, PretrainRuntime()),
            steps=config.steps or 1,
            tokens_digest="",
            tokenizer_digest=read_header(shards["train"][0]).tokenizer_digest,
            train=shards["train"],
            validation=shards["validation"],
            tokenizer=base,
            base=base,
            base_digest="base",
            scratch=folder,
            out=folder / "out",
        )
        (folder / "spec.json").write_text(spec.model_dump_json())
        train(folder / "spec.json")
        rows, (_, *reports) = read_log(spec.log), read_log(spec.insight / "speed.jsonl")
    a_step = config.global_batch * spec.context
    return [row["loss"] for row in rows], [a_step / report["tokens_per_second"] for report in reports]


class _Batches(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """The rows that our loader serves in a run, in order, each with its targets."""

    def __init__(self, config: PretrainConfig, tokens: Path, micro_batch: int) -> None:
        paths = sorted((tokens / "train").glob("*.tokens"))
        digest = read_header(paths[0]).tokenizer_digest
        loader = open_loader(paths, config, context=config.context or 1, tokenizer_digest=digest)
        served = [
            (ids.copy(), targets.copy())
            for step in range(1, (config.steps or 1) + 1)
            for ids, targets, _ in loader.micro_batches(step, rank=0, ranks=1, size=micro_batch)
        ]
        self.ids, self.targets = (torch.from_numpy(np.concatenate(part)) for part in zip(*served, strict=True))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        targets = self.targets[number]
        return {"input_ids": self.ids[number], "labels": targets, "shift_labels": targets}


def _theirs(
    config: PretrainConfig, tokens: Path, base: Path, micro_batch: int, threads: int, *, exact: bool
) -> tuple[list[float], list[float]]:
    """The losses of each step, and the seconds. `exact` is with a cross-entropy in float64."""
    from transformers import Trainer, TrainingArguments

    from models.pretrained import load_pretrained

    steps, a_step = config.steps or 1, config.global_batch // micro_batch
    parts: list[float] = []  # of a micro-batch in the loss
    ended: list[float] = []

    class InOrder(Trainer):  # type: ignore[misc]  # transformers is not followed, see pyproject.toml
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def compute_loss(self, model: Any, inputs: Any, num_items_in_batch: Any = None, **_: Any) -> Any:
            if exact:
                logits_NV = model(input_ids=inputs["input_ids"], use_cache=False).logits.flatten(0, 1)
                sum_ = cross_entropy(logits_NV.double(), inputs["labels"].flatten(), reduction="sum")
                loss = sum_ / int(num_items_in_batch)
            else:
                loss = super().compute_loss(model, inputs, False, num_items_in_batch)
            parts.append(float(loss.detach()))
            return loss

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().training_step(*args, **kwargs)
            if len(parts) % a_step == 0:
                ended.append(perf_counter())
            return loss

    model = load_pretrained(base)
    groups = [
        {"params": [one for one in model.parameters() if one.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [one for one in model.parameters() if one.dim() == 1], "weight_decay": 0.0},
    ]
    betas = (config.beta1, config.beta2)
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, eps=config.epsilon, fused=True)
    rates = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: learning_rate(config, min(done + 1, steps), steps) / config.learning_rate
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=a_step,
            max_grad_norm=config.gradient_clip,
            logging_steps=steps,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=False,
        )
        data = _Batches(config, tokens, micro_batch)
        InOrder(model, arguments, train_dataset=data, optimizers=(optimizer, rates)).train()
    losses = np.array(parts).reshape(steps, a_step).sum(1).tolist()
    return losses, np.diff(ended, prepend=ended[0]).tolist()


if __name__ == "__main__":
    main()
