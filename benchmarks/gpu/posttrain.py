"""Section: SFT and DPO of a model of 135M parameters, trained as the stages' children train, where TRL is installed."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.gpu.bench import Bench

NAME = "posttrain"
ROWS, TINY_ROWS = 512, 32
RECIPES = {"dpo": {"epochs": 1, "learning_rate": 1e-6}, "sft": {"epochs": 2, "learning_rate": 1e-4}}


def run(bench: Bench) -> None:
    """A row for each method."""
    missing = [name for name in ("trl", "datasets") if importlib.util.find_spec(name) is None]
    if missing:
        bench.results.note(NAME, f"left out: {' and '.join(missing)} can't be imported")
        return
    for method in RECIPES:
        asked = {
            "method": method,
            "device": bench.device,
            "threads": bench.threads,
            "data": str(bench.data),
            "tokenizer": str(bench.tokens[1]),
            "tiny": bench.tiny,
        }
        found = bench.measured(NAME, method, asked)
        if found is not None:
            peak = found.pop("peak")
            memory = peak / 1e6 if bench.device == "cuda" else None  # see speed.py
            bench.results.row(NAME, method=method, **found, peak_memory_mb=memory)


def measure(method: str, device: str, threads: int, data: str, tokenizer: str, tiny: bool) -> dict[str, Any]:
    """In the shared process: seconds of the training, its first steps included, and what it lost at the end."""
    from benchmarks.gpu.models import base_model
    from tasks.posttrain.methods import METHODS
    from tasks.posttrain.spec import PosttrainSpec
    from tasks.posttrain.train import train
    from tasks.stage.runtime import ComputeRuntime, PosttrainRuntime, Runtime, TrainingRuntime

    count = TINY_ROWS if tiny else ROWS
    recipe = {**RECIPES[method], "global_batch": min(64, count), "max_dropped_share": 1}
    config = METHODS[method].config.model_validate(recipe)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = folder / "rows.jsonl"
        rows.write_text("".join(json.dumps(row) + "\n" for row in _rows(method, count)))
        shared: dict[str, Any] = {
            "model": base_model(data, tokenizer, tiny=tiny),
            "rows": [rows],
            "runtime": Runtime(
                compute=ComputeRuntime.model_validate({"device": device, "threads": threads}),
                training=TrainingRuntime(stop_grace_seconds=0),  # takes no signals
                posttrain=PosttrainRuntime(micro_batch=min(32, count)),
            ),
        }
        reference = _scored(config, folder / "reference", shared) if method == "dpo" else None
        spec = PosttrainSpec(
            method=method,
            config=config.model_dump(mode="json"),
            base="",
            identity="",
            reference=reference,
            scratch=folder,
            out=folder / "out",
            **shared,
        )
        train(_told(spec))
        result = json.loads(spec.result.read_text())
        last = json.loads(spec.log.read_text().splitlines()[-1])
    seconds = result["facts"]["training_seconds"]
    return {
        "rows": result["train"],
        "rows_a_second": recipe["epochs"] * result["train"] / seconds,
        "training_seconds": seconds,
        "loss": last["loss"],
        "peak": result["facts"]["peak_memory_bytes"],
    }


def _scored(config: Any, folder: Path, shared: dict[str, Any]) -> Path:
    """The file of the pairs' log-probabilities under the model that DPO starts from."""
    from tasks.posttrain.reference.config import ReferenceConfig
    from tasks.posttrain.reference.score import score
    from tasks.posttrain.reference.stage import ReferenceSpec
    from tasks.posttrain.reference.table import FILE

    spec = ReferenceSpec(config=ReferenceConfig.of(config), scratch=folder, out=folder / "out", **shared)
    score(_told(spec))
    return spec.out / FILE


def _told(spec: Any) -> Path:
    """The file of a spec, whose folders are there."""
    spec.out.mkdir(parents=True)
    path: Path = spec.scratch / "spec.json"
    path.write_text(spec.model_dump_json())
    return path


def _rows(method: str, count: int) -> list[dict[str, Any]]:
    """Questions on parts of this tree, which are the answers; those that are rejected are other parts."""
    from benchmarks.gpu.tokens import tree_texts

    parts = [part for text in tree_texts() for part in text.split("\n\n") if 100 < len(part) < 600]
    parts = list(dict.fromkeys(parts))[: 2 * count]
    return [_row(method, number, *both) for number, both in enumerate(zip(parts[:count], parts[count:], strict=True))]


def _row(method: str, number: int, chosen: str, rejected: str) -> dict[str, Any]:
    question = [{"role": "user", "content": f"What does part {number} say?"}]
    answers = [{"role": "assistant", "content": text} for text in (chosen, rejected)]
    row: dict[str, Any] = {"id": str(number), "source": "tree"}
    if method == "sft":
        return {**row, "messages": [*question, answers[0]]}
    return {**row, "prompt": question, "chosen": answers[:1], "rejected": answers[1:]}
