"""`python -m benchmarks.transformer`: a training step of our decoder beside transformers' own, same shape, same tokens.

Both sides run in a fresh process each, under the allocator settings of a training child, in turns; figures are medians
of 5 as ratios, per core-second, with peak memory. Prints a Markdown table for RESULTS.md.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tasks.config import Runtime
from tasks.launch import training_environment
from tasks.output import Output

REPEATS, WARMUP, STEPS = 5, 3, 20
VOCAB, BATCH = 4096, 8
SIDES = ("gristmill", "transformers")


def measure(side: str) -> None:
    """In a process of its own: training steps of one side; tokens a core-second and peak memory as JSON."""
    import torch

    from models.config import ModelConfig
    from models.convert import to_transformers
    from models.presets import derive
    from models.transformer import Transformer

    torch.set_num_threads(1)
    config = ModelConfig(depth=4, context=256, width=128, heads=4, kv_heads=2, feed_forward=384)
    ours = Transformer(derive(config, VOCAB), torch.Generator().manual_seed(0))
    model = ours if side == "gristmill" else to_transformers(ours).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    ids_BT = torch.randint(0, VOCAB, (BATCH, 257), generator=torch.Generator().manual_seed(1))
    started = 0.0
    for step in range(WARMUP + STEPS):
        if step == WARMUP:
            started = time.process_time()
        if side == "gristmill":
            loss = model(ids_BT[:, :-1], ids_BT[:, 1:])
        else:
            # It shifts by itself, so it sees the same 256 predictions
            loss = model(input_ids=ids_BT, labels=ids_BT, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"speed": STEPS * BATCH * 256 / seconds, "peak": peak, "loss": loss.item()}))


def main() -> None:
    """Run both sides in turns and print the table."""
    environment = training_environment(Output("benchmark", Path(), Path(), Runtime(threads=1, device="cpu")))
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(REPEATS):
        for side in SIDES:
            command = [sys.executable, "-m", "benchmarks.transformer", side]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            found[side].append(json.loads(done.stdout.splitlines()[-1]))
    median = {
        side: {key: statistics.median(run[key] for run in runs) for key in ("speed", "peak", "loss")}
        for side, runs in found.items()
    }
    peer = median["transformers"]
    print(f"{platform.machine()}, 1 thread, 1.3M parameters, batch {BATCH} × 256 tokens, medians of {REPEATS}\n")
    print(
        "| side | tokens a core-second | ratio | peak memory (MB) | loss after the last step |\n|---|---|---|---|---|"
    )
    for side in SIDES:
        one = median[side]
        print(
            f"| {side} | {one['speed']:,.0f} | {one['speed'] / peer['speed']:.2f} "
            f"| {one['peak'] / 1e6:,.0f} | {one['loss']:.4f} |"
        )


if __name__ == "__main__":
    measure(sys.argv[1]) if len(sys.argv) > 1 else main()
