"""The seconds that a stage takes on a reference machine: a fixed part, and a rate for each unit of work.

That machine has two slow cores and no GPU. A plan corrects the laws by the times of other stages on its own machine
(rates.py), and uses the GPU's data sheet for training. `python -m benchmarks.estimates` compares plans with runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from storage.units import size_of

Work = Mapping[str, float]  # amounts, by their unit

# Units
TEXT, GFLOP = "MB of text", "GFLOP"
NETWORK, CORPORA, FILES, PAIRS, STEPS = "MB from the network", "embedded corpora", "files", "pairs", "steps"
PAGES = "pages"
QUESTIONS, MODELS, FORMATS, WEIGHTS, WRITTEN = "questions", "models", "formats", "MB of weights", "tokens"

PREFIXES = ("G", "T", "P", "E", "Z")  # of FLOPs
ALONE = 4.0  # CPU seconds before a stage that works on shards has started its workers
GPU_START = 45.0  # seconds: each process's context, and compilation
SHARED = 0.9  # of a worker's time: the rest is lost to coordination


class Law(NamedTuple):
    """Seconds: `fixed`, plus a rate for each unit of work. Workers share the work on shards (`divided`)."""

    fixed: float
    each: Mapping[str, float]
    divided: bool = False

    def seconds(self, work: Work, workers: int = 1) -> float:
        """The seconds of this work."""
        grown = self.growing(work)
        if self.divided and grown > ALONE:
            grown = ALONE + (grown - ALONE) / max(1.0, SHARED * workers)
        return self.fixed + grown

    def growing(self, work: Work) -> float:
        """The seconds that depend on the work, for one worker."""
        return sum(self.each.get(unit, 0.0) * amount for unit, amount in work.items())

    def on_gpu(self, flops: float) -> Law:
        """The law on GPUs that together execute `flops` a second. They take longer to start."""
        return self._replace(fixed=self.fixed + GPU_START, each={**self.each, GFLOP: 1e9 / flops, STEPS: 0.0})


def in_words(work: Work) -> str:
    """The first kind of work: `25.9 MB of text`, `40.6 TFLOP`."""
    unit, amount = next(iter(work.items()))
    if unit in (TEXT, WEIGHTS, NETWORK):
        return unit.replace("MB", size_of(amount * 1e6), 1)
    if unit != GFLOP:
        return f"{amount:,.0f} {unit if amount != 1 else unit.removesuffix('s')}"
    step = min(len(PREFIXES) - 1, max(0, int(math.log10(max(amount, 1)) // 3)))
    return f"{amount / 1000**step:,.3g} {PREFIXES[step]}FLOP"


def _shards(each: float, fixed: float = 0.1) -> Law:
    return Law(fixed, {TEXT: each}, divided=True)


_SHORT = Law(4.0, {GFLOP: 0.0175, STEPS: 0.02})  # rows of a few hundred tokens, one model
_PAIRED = Law(2.5, {GFLOP: 0.02, STEPS: 0.02})

LAWS: dict[str, Law] = {
    "download": Law(0.4, {TEXT: 0.015, NETWORK: 0.05, CORPORA: 0.45, FILES: 8e-4, PAGES: 0.022}),
    "sketches": _shards(0.007, fixed=0.2),
    "dedup": Law(0.2, {TEXT: 0.013}),
    "language": _shards(0.017, fixed=0.2),
    "form": _shards(0.013, fixed=0.2),
    **dict.fromkeys(("lists", "code", "mathematics", "templates", "template_counts", "repair"), _shards(0.03)),
    **dict.fromkeys(("perplexity", "quality", "signals"), _shards(0.08)),
    "toxicity_model": Law(2.0, {}),
    "toxicity": _shards(0.03, fixed=0.4),
    "contamination": _shards(0.01, fixed=0.4),
    "passed": _shards(0.004),
    "pii": _shards(0.05, fixed=1.0),
    "pii_metadata": _shards(0.002),
    "filter": _shards(0.0125, fixed=1.5),
    "pairs": Law(0.15, {PAIRS: 2e-5}),
    "tokenizer": Law(1.5, {TEXT: 0.05}),
    "tokenize": _shards(0.035),
    "base": Law(4.0, {WEIGHTS: 0.06}),
    "pretrain": Law(9.0, {GFLOP: 0.0082, STEPS: 0.02}),
    **dict.fromkeys(("sft", "distill"), _SHORT),
    **dict.fromkeys(("orpo", "cpo", "kto", "dpo", "reward"), _PAIRED),
    "grpo": _SHORT._replace(each={**_SHORT.each, WRITTEN: 0.012}),
    "ppo": _PAIRED._replace(each={**_PAIRED.each, WRITTEN: 0.012}),
    "prune": Law(4.0, {GFLOP: 0.0175, WEIGHTS: 0.06}),
    **dict.fromkeys(("feedback", "best_of_n"), Law(3.0, {GFLOP: 0.0175, WRITTEN: 0.012})),
    "merge": Law(4.0, {WEIGHTS: 0.005}),
    "draft": Law(6.0, {GFLOP: 0.0175, STEPS: 0.02, WEIGHTS: 0.06}),
    "evaluate": Law(1.5, {GFLOP: 0.0115, QUESTIONS: 0.0025, MODELS: 0.5}),
    "export": Law(2.0, {FORMATS: 1.0, WRITTEN: 0.06, WEIGHTS: 0.08, GFLOP: 0.012}),
}
