"""Section: SFT and DPO of a model of 135M parameters, by the stages themselves, where TRL is installed."""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.models import base_model
from benchmarks.measure import end_as_interrupted

NAME = "posttrain"
ROWS, TINY_ROWS = 512, 32
STAGES = ("sft", "dpo")


def run(bench: Bench) -> None:
    """A row for each stage."""
    missing = [name for name in ("trl", "datasets") if importlib.util.find_spec(name) is None]
    if missing:
        bench.results.note(NAME, f"left out: {' and '.join(missing)} can't be imported")
        return
    for stage in STAGES:
        asked = {
            "stage": stage, "rows": TINY_ROWS if bench.tiny else ROWS, "device": bench.device,
            "threads": bench.threads, "model": str(base_model(bench)),
        }  # fmt: skip
        found = bench.measured(NAME, stage, "gpu.posttrain", json.dumps(asked))
        if found is not None:
            bench.results.row(NAME, stage=stage, **found)


def _measure(stage: str, rows: int, device: str, threads: int, model: str) -> dict[str, Any]:
    from benchmarks.gpu.tokens import tree_texts
    from storage.artifact import Artifact
    from tasks.posttrain.methods.dpo import DpoConfig, dpo
    from tasks.posttrain.methods.sft import SftConfig, sft
    from tasks.stage.output import Output
    from tasks.stage.runtime import ComputeRuntime, PosttrainRuntime, Runtime

    answers = [part for text in tree_texts() for part in text.split("\n\n") if 100 < len(part) < 600][: 2 * rows]
    chosen, rejected = answers[:rows], answers[rows:]
    pairs = [_pair(stage, number, *both) for number, both in enumerate(zip(chosen, rejected, strict=True))]
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "pairs"
        given.mkdir()
        (given / "all.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
        runtime = Runtime(
            compute=ComputeRuntime.model_validate({"device": device, "threads": threads}),
            posttrain=PosttrainRuntime(micro_batch=min(32, rows)),
        )
        out = Output.at(Path(folder) / "out", stage=stage, runtime=runtime)
        inputs = Artifact.at(Path(model)), Artifact.at(given)
        began = time.perf_counter()
        batch = min(64, rows)
        if stage == "sft":
            sft.function(SftConfig(epochs=2, global_batch=batch, learning_rate=1e-4, max_dropped_share=1), *inputs, out)
        else:
            dpo.function(DpoConfig(epochs=1, global_batch=batch, learning_rate=1e-6, max_dropped_share=1), *inputs, out)
        took = time.perf_counter() - began
        steps = [json.loads(line) for line in (out.path / "log.jsonl").read_text().splitlines()]
    return {"rows": out.counts["documents"]["kept"], "seconds_in_all": took, "loss": steps[-1]["loss"]}


def _pair(stage: str, number: int, chosen: str, rejected: str) -> dict[str, Any]:
    question = [{"role": "user", "content": f"What does part {number} say?"}]
    answers = [{"role": "assistant", "content": text} for text in (chosen, rejected)]
    row: dict[str, Any] = {"id": str(number), "source": "tree"}
    if stage == "sft":
        return {**row, "messages": [*question, answers[0]]}
    return {**row, "prompt": question, "chosen": answers[:1], "rejected": answers[1:]}


if __name__ == "__main__":
    end_as_interrupted()
    print(json.dumps(_measure(**json.loads(sys.argv[1]))))
