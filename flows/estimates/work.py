"""The work of a stage in the units of laws.py, both for a finished artifact and for one to make.

Both are described by the stage's inputs (`Seen`), so that a measurement is a rate for the next making.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flows.estimates.laws import (
    CORPORA,
    FILES,
    FORMATS,
    GFLOP,
    MODELS,
    NETWORK,
    PAGES,
    PAIRS,
    QUESTIONS,
    STEPS,
    TEXT,
    WEIGHTS,
    WRITTEN,
    Work,
)
from tasks.posttrain.methods import METHODS

MB, BILLION = 1e6, 1e9
FLOAT32 = 4  # bytes of a number
QUESTION_TOKENS = 300  # of a question with all its answers, about
VALIDATIONS = 10  # of a training that doesn't set them
ANSWERED = 32  # prompts that are answered together
Config = Mapping[str, Any]


@dataclass(frozen=True)
class Seen:
    """The inputs of a stage. None means unknown."""

    text: float | None = None  # bytes of documents
    kept: float | None = None  # bytes of the documents that a filter keeps
    network: float = 0.0  # bytes that a download fetches
    files: float = 0.0  # that a download reads
    pages: float = 0.0  # of HTML
    pairs: float | None = None
    pair_tokens: float | None = None  # that a model reads of a pair
    parameters: float | None = None  # of the model
    flops: float | None = None  # executed by pretraining
    models: tuple[float, ...] | None = None  # parameters of each evaluated model
    questions: float | None = None  # for each model
    held_out: float = 0.0  # tokens


def work_of(stage: str, config: Config, seen: Seen) -> Work | None:
    """The work of a stage, or None if its inputs are unknown or it has no law."""
    known = WORK.get(stage)
    return known(config, seen) if known else None


def _download(config: Config, seen: Seen) -> Work | None:
    if seen.text is None:
        return None
    embedded = [source for source in config.get("sources", []) if source["kind"] == "embedded"]
    corpora = sum(len(source["corpora"]) for source in embedded)
    return {TEXT: seen.text / MB, NETWORK: seen.network / MB, CORPORA: corpora, FILES: seen.files, PAGES: seen.pages}


def _documents(config: Config, seen: Seen) -> Work | None:
    return None if seen.text is None else {TEXT: seen.text / MB}


def _kept(config: Config, seen: Seen) -> Work | None:
    return None if seen.kept is None else {TEXT: seen.kept / MB}


def _pairs(config: Config, seen: Seen) -> Work | None:
    return None if seen.pairs is None else {PAIRS: seen.pairs}


def _pretraining(config: Config, seen: Seen) -> Work | None:
    return None if seen.flops is None else {GFLOP: seen.flops / BILLION, STEPS: float(config.get("steps") or 0)}


def _base(config: Config, seen: Seen) -> Work | None:
    return None if seen.parameters is None else {WEIGHTS: FLOAT32 * seen.parameters / MB}


def _posttraining(config: Config, seen: Seen) -> Work | None:
    if seen.pairs is None or seen.parameters is None or seen.pair_tokens is None or config.get("endpoint"):
        return None
    held_out = seen.pairs * float(config.get("validation_share") or 0)
    trained = (seen.pairs - held_out) * float(config.get("epochs") or 1)
    steps, every = trained / float(config.get("global_batch") or 16), config.get("validation_every")
    validations = 1 + (max(1, steps // every) if every else min(VALIDATIONS, steps))
    back = 2 if config.get("adapter") else 3  # frozen weights need no gradients
    reference = seen.pairs if "beta" in config else 0.0  # forward passes of the model before the training
    forward = 2 * seen.parameters * seen.pair_tokens / BILLION
    return {GFLOP: forward * (back * trained + validations * held_out + reference), STEPS: steps}


def _sampling(config: Config, seen: Seen) -> Work | None:
    """A training on its own answers, at their longest: they are sampled, read by each model, and learned from."""
    if seen.pairs is None or seen.parameters is None:
        return None
    held_out = seen.pairs * float(config.get("validation_share") or 0)
    batch, longest = float(config.get("global_batch") or 16), float(config.get("max_new_tokens") or 0)
    rollouts = max(1.0, (seen.pairs - held_out) * float(config.get("epochs") or 1) / batch)
    every, updates = config.get("validation_every"), float(config.get("updates") or config.get("passes") or 1)
    validations = 1 + (max(1, rollouts // every) if every else min(VALIDATIONS, rollouts))
    answers, trained = batch * float(config.get("group") or 1), 2 if "passes" in config else 1  # a critic too
    back = 2 if config.get("adapter") else 3
    passes = answers * rollouts * trained * (updates * back + 2) + validations * held_out
    forward = 2 * seen.parameters * ((seen.pair_tokens or 0.0) + longest) / BILLION
    batches = rollouts + validations * max(1.0, held_out / ANSWERED)
    return {GFLOP: forward * passes, STEPS: rollouts * updates, WRITTEN: batches * longest}


def _prune(config: Config, seen: Seen) -> Work | None:
    if seen.parameters is None:
        return None
    rows = float(config.get("calibration_rows") or 0) + 2 * float(config.get("measured_rows") or 0)
    forward = 2 * seen.parameters * QUESTION_TOKENS / BILLION
    return {GFLOP: forward * rows, WEIGHTS: FLOAT32 * seen.parameters / MB}


def _feedback(config: Config, seen: Seen) -> Work | None:
    """Of a model that is asked here. A step is a token of a batch."""
    if seen.parameters is None or config.get("endpoint"):
        return None
    samples = float(config.get("samples") or 0)
    asked = samples * samples if config.get("mode") == "judge" else 3.0  # each two, in both orders
    answers = float(config.get("prompts") or 0) * asked
    return _answering(config, seen.parameters, answers, QUESTION_TOKENS)


def _best_of_n(config: Config, seen: Seen) -> Work | None:
    """Of a model that answers here, at its longest."""
    if seen.pairs is None or seen.parameters is None or config.get("endpoint"):
        return None
    prompts = seen.pairs * (1 - float(config.get("validation_share") or 0))
    answers = min(prompts, float(config.get("prompts") or prompts)) * float(config.get("n") or 1)
    return _answering(config, seen.parameters, answers, seen.pair_tokens or 0.0)


def _answering(config: Config, parameters: float, answers: float, prompt_tokens: float) -> Work:
    """Of answers to prompts of a mean length, each as long as it may be."""
    longest = float(config.get("max_new_tokens") or 0)
    forward = 2 * parameters * (prompt_tokens + longest) / BILLION
    return {GFLOP: forward * answers, WRITTEN: answers / ANSWERED * longest}


def _merge(config: Config, seen: Seen) -> Work | None:
    """The base and the models are read, and one is written."""
    if seen.parameters is None:
        return None
    return {WEIGHTS: FLOAT32 * seen.parameters / MB * (len(config["models"]) + 2)}


def _draft(config: Config, seen: Seen) -> Work | None:
    """Pruned, then distilled, as if it were as large as the model that it drafts for."""
    parts = [_prune(config["prune"], seen)] if config.get("prune") else []
    parts += [_posttraining(config["distill"], seen)] if config.get("distill") else []
    known = [part for part in parts if part]
    units = {unit for part in known for unit in part}
    return (
        {unit: sum(part.get(unit, 0.0) for part in known) for unit in sorted(units)}
        if len(known) == len(parts)
        else None
    )


def _evaluation(config: Config, seen: Seen) -> Work | None:
    if seen.models is None or seen.questions is None:
        return None
    tokens = seen.questions * QUESTION_TOKENS + seen.held_out
    return {
        GFLOP: sum(2 * parameters * tokens / BILLION for parameters in seen.models),
        QUESTIONS: len(seen.models) * seen.questions,
        MODELS: len(seen.models),
    }


def _export(config: Config, seen: Seen) -> Work | None:
    if seen.parameters is None:
        return None
    formats = len(config.get("formats") or [""])
    return {
        FORMATS: formats,
        WEIGHTS: formats * FLOAT32 * seen.parameters / MB,
        WRITTEN: formats * float(config.get("greedy_tokens") or 0),
        GFLOP: formats * 2 * seen.parameters * float(config.get("positions") or 0) / BILLION,
    }


OF_DOCUMENTS = (
    "sketches",
    "dedup",
    "language",
    "form",
    "lists",
    "code",
    "mathematics",
    "templates",
    "template_counts",
    "repair",
    "perplexity",
    "quality",
    "signals",
    "toxicity_model",
    "toxicity",
    "contamination",
    "passed",
    "filter",
    "tokenize",
    "tokenizer",
)
WORK: dict[str, Callable[[Config, Seen], Work | None]] = {
    "download": _download,
    **dict.fromkeys(OF_DOCUMENTS, _documents),
    **dict.fromkeys(("pii", "pii_metadata"), _kept),
    "pairs": _pairs,
    "pretrain": _pretraining,
    "base": _base,
    **{name: _sampling if method.samples else _posttraining for name, method in METHODS.items()},
    "prune": _prune,
    "feedback": _feedback,
    "best_of_n": _best_of_n,
    "merge": _merge,
    "draft": _draft,
    "evaluate": _evaluation,
    "export": _export,
}
