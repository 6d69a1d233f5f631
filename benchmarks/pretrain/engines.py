"""`python -m benchmarks.pretrain.engines`: the profile `smoke` by every engine on several CPU processes, over gloo.

Losses must be equal: each line is a separate run, with its last losses and their difference from one process. The model
is smoke's, but with two kv_heads for tensor parallelism; by AdamW, as not every engine can train by Muon; and at a rate
at which the rounding of sums is not made larger from step to step.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import DATA
from benchmarks.pretrain.data import data_of
from flows.estimates.arithmetic import pretraining_of
from profiles.load import load
from storage.artifact import Artifact
from tasks.pretrain import pretrain
from tasks.stage.output import Output

ONE = "one process"
CHANGES = [
    "pretrain.model.kv_heads=2",
    "pretrain.optimizer=adamw",
    "pretrain.muon_learning_rate=null",
    "pretrain.learning_rate=1e-3",
]
ENGINES: dict[str, tuple[int, dict[str, Any]]] = {  # processes, and what differs
    ONE: (1, {"engine": "ddp"}),
    "DDP, 2 processes": (2, {"engine": "ddp"}),
    "FSDP2, 2": (2, {"engine": "fsdp"}),
    "FSDP2 resharding, 2": (2, {"engine": "fsdp", "zero_stage": 3}),
    "ZeRO 0, 2": (2, {"engine": "deepspeed"}),
    "ZeRO 1, 2": (2, {"engine": "deepspeed", "zero_stage": 1}),
    "ZeRO 2, 2": (2, {"engine": "deepspeed", "zero_stage": 2}),
    "ZeRO 3, 2": (2, {"engine": "deepspeed", "zero_stage": 3}),
    "tensor parallel, 2": (2, {"engine": "ddp", "tensor_parallel": 2}),
    "pipeline parallel, 2": (2, {"engine": "ddp", "pipeline_parallel": 2}),
    "FSDP2 × tensor parallel, 4": (4, {"engine": "fsdp", "tensor_parallel": 2}),
    "DDP × pipeline parallel, 4": (4, {"engine": "ddp", "pipeline_parallel": 2}),
}


def main() -> None:
    """Train by each engine, print a row for each."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the token shards")
    tokens, tokenizer = data_of("smoke", parser.parse_args().data.resolve())
    profile = load("smoke", CHANGES)
    print("| engine, processes | training loss | validation loss | from one process |\n|---|---|---|---|")
    alone = 0.0
    for name, (processes, changes) in ENGINES.items():
        print(name, file=sys.stderr)
        runtime = profile.runtime.with_changes("compute", threads=1)
        runtime = runtime.with_changes("training", processes=processes)
        runtime = runtime.with_changes("pretrain", preflight="never", **changes)
        with tempfile.TemporaryDirectory() as folder:
            out = Output.at(Path(folder), stage="pretrain", runtime=runtime)
            pretrain.function(pretraining_of(profile), Artifact.at(tokens), Artifact.at(tokenizer), out)
        train, validation = out.counts["train_loss"], out.counts["validation_loss"]
        alone = alone or validation
        print(f"| {name} | {train:.6f} | {validation:.6f} | {abs(validation - alone):.1e} |", flush=True)


if __name__ == "__main__":
    main()
