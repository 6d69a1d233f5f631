"""`python -m benchmarks.posttrain.rollouts MODEL`: which engine samples answers fastest on this CPU?

Each engine samples a group of answers to each of some random prompts, on one thread, with none that ends early: first
unmeasured, then three times. Printed are tokens of answers a CPU second, the best of the three, so that other work on
the machine counts less. Weights are handed over once before, which is timed too.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import count

if TYPE_CHECKING:
    from tasks.posttrain.rollouts.engine import Engine

GROUP = 8


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a model folder with tokenizer and chat template")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--lengths", type=int, nargs="+", default=[8, 128], help="of prompts, in tokens")
    parser.add_argument("--tokens", type=int, default=32, help="of an answer")
    parser.add_argument("--runs", type=count, default=3)
    options = parser.parse_args()
    found = engines(options.model, options.tokens)
    print("| prompt | engine | tokens a CPU second | CPU s to hand the weights over |\n|---|---|---|---|")
    for length in options.lengths:
        for name, (sample, handed) in found.items():
            prompts = [prompt for prompt in random_prompts(options.prompts, length) for _ in range(GROUP)]
            sample(prompts)
            seconds = min(timed(lambda: sample(prompts)) for _ in range(options.runs))  # noqa: B023
            rate = options.tokens * len(prompts) / seconds
            print(f"| {length} | {name} | {rate:,.1f} | {handed:.2f} |", flush=True)


def engines(folder: Path, tokens: int) -> dict[str, tuple[Callable[[list[list[int]]], Any], float]]:
    """A function that samples, for each engine, and how long the weights took."""
    import torch

    from models.pretrained import load_pretrained
    from models.runtimes.greedy import pad_left
    from tasks.posttrain.rollouts.engine import ContinuousEngine
    from tasks.posttrain.rollouts.llama_cpp import LlamaCppEngine

    torch.set_num_threads(1)
    model: Any = load_pretrained(folder).eval()

    @torch.no_grad()
    def generate(prompts: list[list[int]]) -> None:
        ids_BT, mask_BT = pad_left(prompts, 0)
        drawn = {"do_sample": True, "top_k": 0, "top_p": 1.0, "pad_token_id": 0, "eos_token_id": None}
        model.generate(ids_BT, attention_mask=mask_BT, max_new_tokens=tokens, min_new_tokens=tokens, **drawn)

    found: dict[str, tuple[Callable[[list[list[int]]], Any], float]] = {"transformers": (generate, 0.0)}
    made: dict[str, Engine] = {
        "llama.cpp": LlamaCppEngine(folder, [], 1.0, 1),
        "continuous": ContinuousEngine([-1], 0, 1.0),
    }
    for name, engine in made.items():
        handed = timed(functools.partial(engine.update, model))
        found[name] = functools.partial(sampled, engine, tokens), handed
    return found


def sampled(engine: Engine, tokens: int, prompts: list[list[int]]) -> None:
    """Sample by an engine, each answer with its place as the seed."""
    engine.sample(prompts, range(len(prompts)), tokens)


def random_prompts(number: int, length: int) -> list[list[int]]:
    """Ids of no special tokens, for any vocabulary of a few hundred."""
    import torch

    drawn = torch.randint(20, 280, (number, length), generator=torch.Generator().manual_seed(1))
    return [[int(id) for id in row] for row in drawn]


def timed(call: Callable[[], Any]) -> float:
    """CPU seconds of all threads."""
    began = time.process_time()
    call()
    return time.process_time() - began


if __name__ == "__main__":
    main()
