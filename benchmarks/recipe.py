"""`python -m benchmarks.recipe`: what each change of the training recipe does to the loss, over several seeds.

Each variant is a Llama by the recipe of `smoke` or `tiny` with a few other settings, in other numbers of steps. With
the same seed all see the same batches and, in the same shape, begin with the same weights, so differences are paired by
seed. The table has the mean difference in bits per byte of held-out text to the first variant of its size, with a 95 %
interval (Student), and the mean CPU time of a training. Runs that `--results` has are not repeated.

The tokens are those of the profile, whose data stages run first, once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import DATA, end_as_interrupted
from benchmarks.pretrain.data import data_of
from models.presets import derive
from profiles.load import load
from tasks.children.environment import training_environment
from tasks.pretrain import PretrainConfig
from tasks.significance.estimate import estimate
from tasks.stage.runtime import ComputeRuntime, PretrainRuntime, Runtime

SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"steps": 250, "global_batch": 8, "warmup_steps": 25, "validation_tokens": 32768},
    "tiny": {"steps": 250, "global_batch": 4, "model": {"family": "llama"}},
    "above": {
        "steps": 150,
        "global_batch": 4,
        "model": {"family": "llama", "depth": 6, "width": 192, "heads": 6, "feed_forward": 512},
    },
}
VARIANTS: dict[str, dict[str, Any]] = {  # the first is what the others are compared with
    "llama": {},
    "qwen3": {"model": {"family": "qwen3"}},
    "gemma3": {"model": {"family": "gemma3"}},
    "olmo3": {"model": {"family": "olmo3"}},
    "AdamW": {"optimizer": "adamw", "muon_learning_rate": None, "learning_rate": 6e-3},
    "depth muP from 3": {"mup_base_depth": 3},
    "no decay": {"weight_decay": 0.0},
    "z-loss 1e-4": {"z_loss": 1e-4},
    "ends at a tenth": {"final_share": 0.1},
    "untied head": {"model": {"tie_embeddings": False}},
    "AdamW's rate 3e-2": {"learning_rate": 3e-2},
    "Muon's rate 6e-3": {"muon_learning_rate": 6e-3},
}


def main() -> None:
    """Train what is missing, print the table."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recipe", description=__doc__, formatter_class=raw)
    parser.add_argument("variants", nargs="*", help=f"of {', '.join(VARIANTS)} (default all)")
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--seeds", type=int, default=3, help="(default 3)")
    parser.add_argument("--threads", type=int, default=1, help="(default 1)")
    parser.add_argument("--results", type=Path, default=DATA / "recipe.jsonl", help="where the figures of runs lie")
    parser.add_argument("--data", type=Path, default=DATA, help="where the store with the tokens is")
    asked = parser.parse_args()
    variables = training_environment(ComputeRuntime(device="cpu", threads=asked.threads))
    if any(os.environ.get(name) != value for name, value in variables.items()):  # the allocator reads it at the start
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.recipe", *sys.argv[1:]], variables)
    end_as_interrupted()
    names = asked.variants or list(VARIANTS)
    found = results_of(asked.results)
    missing = [
        (size, name, seed)
        for size in asked.sizes
        for seed in range(asked.seeds)
        for name in dict.fromkeys((next(iter(VARIANTS)), *names))
        if (size, name, seed) not in found
    ]
    if missing:
        train_all(missing, asked)
    print(table(results_of(asked.results), asked.sizes, names))


Key = tuple[str, str, int]  # size, variant, seed


def results_of(path: Path) -> dict[Key, dict[str, float]]:
    """The runs of earlier calls."""
    rows = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return {(row["size"], row["variant"], row["seed"]): row for row in rows}


def profile_of(size: str) -> str:
    """The profile that a size starts from."""
    return "smoke" if size == "smoke" else "tiny"


def config_of(size: str, variant: str, seed: int) -> PretrainConfig:
    """The section `pretrain` of a run."""
    chosen = load(profile_of(size)).pretrain
    assert chosen is not None
    section = chosen.model_dump(mode="json", exclude_unset=True)
    for change in (SIZES[size], VARIANTS[variant]):
        section |= change | {"model": section["model"] | change.get("model", {})}
    return PretrainConfig.model_validate(section | {"seed": seed})


def train_all(missing: list[Key], asked: argparse.Namespace) -> None:
    """Train one after the other, and note each in the file of results."""
    from tasks.pretrain.world import join

    data = {name: data_of(name, asked.data.resolve()) for name in {profile_of(size) for size, *_ in missing}}
    asked.results.parent.mkdir(parents=True, exist_ok=True)
    runtime = Runtime(
        compute=ComputeRuntime(device="cpu", threads=asked.threads), pretrain=PretrainRuntime(engine="ddp")
    )
    world = join(runtime)
    for number, (size, variant, seed) in enumerate(missing, 1):
        print(f"{number}/{len(missing)}: {size}, {variant}, seed {seed}", file=sys.stderr, flush=True)
        begun = time.process_time()
        bits = train(config_of(size, variant, seed), runtime, world, *data[profile_of(size)])
        row = {"size": size, "variant": variant, "seed": seed, "bits": bits, "cpu": time.process_time() - begun}
        with asked.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
    world.leave()


def train(config: PretrainConfig, runtime: Runtime, world: Any, tokens: Path, tokenizer: Path) -> float:
    """Bits per byte of held-out text after a training in this process."""
    import torch

    from models.kernels.attention import for_one_shape
    from models.tokenizer import load_tokenizer, tokenizer_digest
    from storage.shards.token_stream import TokenStream
    from tasks.pretrain.engines import MicroBatch, open_engine
    from tasks.pretrain.evaluation import Validation
    from tasks.pretrain.loader import open_loader
    from tasks.pretrain.recipe.schedule import learning_rate
    from tasks.pretrain.spec import TrainSpec

    shape = derive(config.new_model, len(load_tokenizer(tokenizer)))
    steps = config.total_steps(shape)
    files = {split: sorted((tokens / split).glob("*.tokens")) for split in ("train", "validation")}
    digest = tokenizer_digest(tokenizer)
    spec = TrainSpec(
        config=config, runtime=runtime, shape=shape, steps=steps, tokens_digest="", tokenizer_digest=digest,
        tokenizer=tokenizer, scratch=tokens, out=tokens, **files,
    )  # fmt: skip
    engine = open_engine(spec, world)
    loader = open_loader(spec.train, config, context=shape.context, tokenizer_digest=digest, fim_tokens=None)
    held_out = TokenStream(spec.validation, tokenizer_digest=digest)
    validation = Validation(held_out, context=shape.context, tokens=config.validation_tokens, world=world)
    with for_one_shape(world.device):
        for step in range(1, steps + 1):
            served = loader.micro_batches(step, rank=0, ranks=1, size=engine.micro_batch)
            batches: list[MicroBatch] = [
                (torch.tensor(batch.ids), torch.tensor(batch.targets), None) for batch in served
            ]
            engine.step(batches, learning_rate(config, step, steps))
        return validation.bits_per_byte(validation.loss(engine, lambda: None))


def table(found: dict[Key, dict[str, float]], sizes: list[str], names: list[str]) -> str:
    """Markdown, with the variants that have been run with two seeds at least."""
    lines = [
        "| size | variant | seeds | bits per byte | difference | 95 % interval | CPU (s) |",
        "|---|---|---|---|---|---|---|",
    ]
    for size in sizes:
        runs: dict[str, dict[int, dict[str, float]]] = defaultdict(dict)
        for (of, name, seed), row in found.items():
            if of == size:
                runs[name][seed] = row
        base = runs[next(iter(VARIANTS))]
        for name in (name for name in VARIANTS if name in (*names, next(iter(VARIANTS)))):
            seeds = sorted(runs[name].keys() & base.keys())
            if len(seeds) < 2:
                continue
            bits, cpu = (np.mean([runs[name][seed][key] for seed in seeds]) for key in ("bits", "cpu"))
            change = estimate(np.array([runs[name][seed]["bits"] - base[seed]["bits"] for seed in seeds]))
            told = f"{change.mean:+.4f} | {change.low:+.4f} to {change.high:+.4f}" if runs[name] is not base else " | "
            lines.append(f"| {size} | {name} | {len(seeds)} | {bits:.4f} | {told} | {cpu:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
