"""`python -m benchmarks.pretrain`: training steps of our pretrain stage beside other training loops and the
machine's peak.

All train a model of the same shape on the same ids, in float32, with fused AdamW and gradient clipping, batches of
8 × 256 tokens, in the environment of our training child (its allocator settings and threads). Each run is a new
process; sides take turns; figures are medians. Start-up and the first steps are not counted. On a busy machine only the
CPU time of one thread says something. LLaMA's shape is compared with transformers' Trainer and litgpt (in the peers'
environment), eager and compiled; GPT-2's with a plain loop over a plain module. `mfu_measured` is the share of the
matrix-product peak, measured at the start of our runs, by model FLOPs.

The ids are the training ids of the profile `tiny` with a smaller vocabulary; its data stages run first, once.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
from pathlib import Path

from benchmarks.measure import DATA, ROOT, Failed, count, measure
from benchmarks.peer_environment import LITGPT
from benchmarks.pretrain.data import data_of
from benchmarks.pretrain.ours import ENGINES, shape_of
from benchmarks.pretrain.sizes import Size, Task
from models.presets import count_parameters, flops_per_token
from tasks.children.environment import training_environment
from tasks.stage import machine
from tasks.stage.runtime import ComputeRuntime

VOCAB, CONTEXT, BATCH = 4096, 256, 8


def _size(depth: int, width: int, heads: int, kv_heads: int, feed_forward: int, steps: int) -> Size:
    return Size(depth, width, heads, kv_heads, feed_forward, VOCAB, CONTEXT, BATCH, BATCH, steps)


SIZES = {  # the steps of each take about ten seconds
    "1.3M": _size(4, 128, 4, 2, 384, 60),
    "5M": _size(5, 256, 8, 4, 768, 25),
    "16M": _size(9, 384, 6, 2, 1024, 12),
}
OURS = ("gristmill", "gristmill, DeepSpeed", "gristmill, compiled")
PEERS = {"llama": ("transformers Trainer", "litgpt", "litgpt, compiled"), "gpt2": ("plain loop",)}


def main() -> None:
    """Run the sides in turns and print a table for each family."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pretrain", description=__doc__, formatter_class=raw)
    parser.add_argument("sizes", nargs="*", default=list(SIZES), help=f"of {', '.join(SIZES)} (default all)")
    parser.add_argument("--families", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--sides", nargs="*", help="only those whose name contains one of these strings, and gristmill")
    parser.add_argument("--runs", type=count, default=5, help="runs of each side (default 5)")
    parser.add_argument("--threads", type=int, default=machine.cores(), help="(default all cores)")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the token shards")
    options = parser.parse_args()
    tokens, tokenizer = data_of("tiny", options.data.resolve(), f"tokenizer.vocab_size={VOCAB}")
    for family in options.families:
        every = (*OURS, *PEERS[family])
        words = options.sides
        sides = [side for side in every if words is None or side == every[0] or any(word in side for word in words)]
        for size in options.sizes:
            tasks = [Task(side, family, SIZES[size], options.threads, str(tokens), str(tokenizer)) for side in sides]
            _compare(size, tasks, options.runs)


def _compare(name: str, tasks: list[Task], runs: int) -> None:
    taken: dict[str, list[dict[str, float]]] = {task.side: [] for task in tasks}
    for number in range(runs):
        for task in tasks:
            print(f"run {number + 1}/{runs}: {task.side}, {task.family}, {name}", file=sys.stderr)
            try:
                taken[task.side].append(_run(task))
            except Failed as error:
                print(f"{task.side}: {error}", file=sys.stderr)
    first = tasks[0]
    if not taken[first.side]:
        sys.exit(f"{first.side} failed in every run: there is nothing to compare with.")
    shape = shape_of(first)
    peak = statistics.median(run["peak_flops"] for run in taken[first.side])
    print(
        f"\n{platform.machine()}, {first.threads} threads, {first.family}, {count_parameters(shape):,} parameters, "
        f"batch {BATCH} × {CONTEXT}, measured peak {peak / 1e9:,.0f} GFLOP/s, medians of {runs}\n"
    )
    print(
        "| side | tokens a second | gristmill / it | least CPU ms | by CPU | mfu_measured | peak memory (MB) | loss |"
    )
    print("|---|---|---|---|---|---|---|---|")
    seconds, cpu = (
        {side: statistics.median(run[kind] for run in found) for side, found in taken.items() if found}
        for kind in ("seconds", "cpu")
    )
    for side, took in seconds.items():
        speed = BATCH * CONTEXT / took
        memory = statistics.median(run["peak"] for run in taken[side]) / 1e6
        loss = statistics.median(run["loss"] for run in taken[side])
        print(
            f"| {side} | {speed:,.0f} | {took / seconds[first.side]:.2f} | {1000 * cpu[side]:,.0f} "
            f"| {cpu[side] / cpu[first.side]:.2f} | {speed * flops_per_token(shape) / peak:.1%} | {memory:,.0f} "
            f"| {loss:.3f} |",
            flush=True,
        )


def _run(task: Task) -> dict[str, float]:
    module, python = "ours", sys.executable
    if task.side.startswith("litgpt"):
        LITGPT.ensure()
        module, python = "litgpt_side", str(LITGPT.python)
    elif task.side not in ENGINES:
        module = "peers"
    variables = training_environment(ComputeRuntime(device="cpu", threads=task.threads))
    variables["PYTHONPATH"] = str(ROOT.parent)
    found: dict[str, float] = measure([python, "-m", f"benchmarks.pretrain.{module}", task.to_json()], variables).result
    return found


if __name__ == "__main__":
    main()
