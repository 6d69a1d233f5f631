"""`python -m benchmarks.posttrain.peers --store store`: SFT, DPO and a reward model beside TRL's own trainers.

Both sides learn from the same rows of `tiny` in the same order with the same arguments, each in processes of its own:
ours is the whole stage, TRL's is a script that gives its trainer the conversations. The losses of the first 20 steps
are compared. A step's CPU time is that of a run of 40 steps less that of one of 20, divided by 20, so that start-up,
checks and saving cancel; told are medians of the runs. Memory is that of the largest process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, Run, count, end_as_interrupted, environment, measure, median
from storage.artifact import Artifact

METHODS = {"sft": "instructions", "dpo": "preferences", "reward": "preferences"}
STEPS = (20, 40)
BATCH, RATE, WARMUP = 16, 1e-3, 0.05
CONTEXT = 256  # of tiny


def main() -> None:
    """Run both sides of each method, and print the table."""
    from benchmarks.posttrain.seeds import add_store

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_store(parser)
    parser.add_argument("--methods", nargs="+", choices=[*METHODS], default=[*METHODS])
    parser.add_argument("--runs", type=count, default=5, help="of each side and length")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--side", nargs=3, help=argparse.SUPPRESS)  # side, method, steps: what a process does
    options = parser.parse_args()
    if options.side:
        side, method, steps = options.side
        print(json.dumps(SIDES[side](options, method, int(steps))))
        return
    end_as_interrupted()
    names = ["method", "side", "largest difference of a loss", "CPU s a step", "ratio", "peak MB"]
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for method in options.methods:
        _compare(options, method)


def _compare(options: argparse.Namespace, method: str) -> None:
    runs: dict[tuple[str, int], list[Run]] = {(side, steps): [] for side in SIDES for steps in STEPS}
    for _ in range(options.runs):
        for side, steps in runs:
            asked = ["--store", str(Path(options.store).resolve()), "--threads", str(options.threads)]
            command = [sys.executable, "-m", "benchmarks.posttrain.peers", *asked, "--side", side, method, str(steps)]
            variables = environment(options.threads) | {"PYTHONPATH": str(ROOT.parent)}
            runs[side, steps].append(measure(command, variables))
    short, long = ({side: median(runs[side, steps]) for side in SIDES} for steps in STEPS)
    seconds = {side: (long[side].cpu - short[side].cpu) / (STEPS[1] - STEPS[0]) for side in SIDES}
    losses = [short[side].result["losses"] for side in SIDES]
    apart = max(abs(ours - theirs) for ours, theirs in zip(*losses, strict=True))
    for side in SIDES:
        ratio = seconds["TRL"] / seconds[side]
        told = f"{apart:.1e} | {seconds[side]:.3f} | {ratio:.2f} × | {long[side].peak / 1e6:,.0f}"
        print(f"| {method} | {side} | {told} |", flush=True)


def _ours(options: argparse.Namespace, method: str, steps: int) -> dict[str, Any]:
    """The stage, with nothing held out."""
    from benchmarks.posttrain.seeds import runtime_of
    from tasks.posttrain.methods import METHODS as STAGES
    from tasks.posttrain.methods.dpo import dpo
    from tasks.posttrain.methods.reward import reward
    from tasks.posttrain.methods.sft import sft
    from tasks.stage.output import Output
    from tasks.training.logs import read_log

    model, pairs, kept = _given(options, method)
    config = STAGES[method].config.model_validate(_settings(len(kept), steps))
    with tempfile.TemporaryDirectory() as folder:
        out = Output.at(Path(folder), stage=method, runtime=runtime_of(options.threads, micro_batch=BATCH))
        {"sft": sft, "dpo": dpo, "reward": reward}[method].function(config, model, pairs, out)
        return {"losses": [row["loss"] for row in read_log(out.path / "log.jsonl")]}


def _trl(options: argparse.Namespace, method: str, steps: int) -> dict[str, Any]:
    """TRL's trainer, on the conversations."""
    import torch
    import trl
    from datasets import Dataset
    from transformers import PrinterCallback

    from models.tokenizer import load_tokenizer
    from tasks.posttrain.batches import training_order
    from tasks.posttrain.methods import METHODS as STAGES

    torch.set_num_threads(options.threads)
    model, _, rows = _given(options, method)
    config = STAGES[method].config.model_validate(_settings(len(rows), steps))
    ordered = Dataset.from_list([rows[number] for number in training_order(config, len(rows))])
    trainers: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "sft": (trl.SFTTrainer, trl.SFTConfig, {"assistant_only_loss": True}),
        "dpo": (trl.DPOTrainer, trl.DPOConfig, {"beta": 0.1}),
        "reward": (trl.RewardTrainer, trl.RewardConfig, {"center_rewards_coefficient": 0.01}),
    }
    trainer, arguments, more = trainers[method]
    with tempfile.TemporaryDirectory() as folder:
        asked = arguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=BATCH,
            learning_rate=RATE,
            lr_scheduler_type="cosine",
            warmup_steps=round(WARMUP * steps),
            weight_decay=0.0,
            max_grad_norm=1.0,
            optim="adamw_torch_fused",
            bf16=False,
            use_cpu=True,
            logging_steps=1,
            seed=0,
            max_length=CONTEXT,
            train_sampling_strategy="sequential",
            report_to=[],
            gradient_checkpointing=False,
            save_strategy="no",
            disable_tqdm=True,
            **more,
        )
        made = trainer(str(model.path), args=asked, train_dataset=ordered, processing_class=load_tokenizer(model.path))
        made.remove_callback(PrinterCallback)
        made.train()
    return {"losses": [entry["loss"] for entry in made.state.log_history if "loss" in entry]}


SIDES = {"TRL": _trl, "Gristmill": _ours}


def _given(options: argparse.Namespace, method: str) -> tuple[Artifact, Artifact, list[dict[str, Any]]]:
    """The model that a side starts from, the pairs, and those of them that the stage does not drop."""
    from benchmarks.posttrain.seeds import of_tiny
    from models.tokenizer import load_tokenizer
    from tasks.posttrain.methods import METHODS as STAGES
    from tasks.posttrain.rows.form import Dropped
    from tasks.posttrain.rows.prepare import read_rows

    model = of_tiny(options.store, "pretrain" if method == "sft" else "sft", "model")
    pairs = of_tiny(options.store, "pairs", METHODS[method])
    tokenizer, form, kept = load_tokenizer(model.path), STAGES[method].form(STAGES[method].config()), []
    for row in read_rows(pairs.files("*.jsonl")):
        with contextlib.suppress(Dropped):
            form.render(row, tokenizer, CONTEXT)
            kept.append(row)
    return model, pairs, kept


def _settings(rows: int, steps: int) -> dict[str, Any]:
    epochs = (steps - 0.5) * BATCH / rows  # rounded up to whole batches
    return {
        "validation_share": 0.0,
        "deduplicate": "none",
        "global_batch": BATCH,
        "learning_rate": RATE,
        "warmup_share": WARMUP,
        "epochs": epochs,
    }


if __name__ == "__main__":
    main()
