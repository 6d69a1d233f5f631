"""The requests to a model: beginnings to continue, and questions, as rows for the child."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from storage.errors import ConfigError
from tasks.evaluate.safety.config import SafetyConfig
from tasks.evaluate.safety.questions import Question, prompts_of, questions_of
from tasks.evaluate.safety.training_text.openings import Opening, Openings, choose

CONTINUATIONS, TRAINING, HELD_OUT, BIAS = "continuations", "memorised", "memorised-control", "bias"


class Requests(NamedTuple):
    """The rows, and the texts that their answers are compared with."""

    rows: list[dict[str, Any]]
    training: Openings | None
    held_out: Openings | None
    questions: list[Question]


def requests_of(config: SafetyConfig, held_out: Sequence[Path], training: Sequence[Path], digest: str) -> Requests:
    """All requests. Raises ConfigError for documents that are too short, SourceError for bad files."""
    rows = [*_continuations(config, held_out, digest)]
    chosen: tuple[Openings | None, Openings | None] = (None, None)
    if config.memorisation:
        if not training:
            raise ConfigError(
                "evaluate.safety.memorisation needs the tokens that the model was trained on, and got none.",
                "Set it to null in a profile that starts from an existing model.",
            )
        of_training = _chosen(config, training, digest)
        chosen = (of_training, _chosen(config, held_out, digest) if held_out else None)
        if not of_training.chosen:
            memorisation = config.memorisation
            raise ConfigError(
                f"No training document has {memorisation.prompt_tokens + memorisation.continuation_tokens} tokens.",
                "Lower evaluate.safety.memorisation.prompt_tokens and continuation_tokens.",
            )
        for part, openings in zip((TRAINING, HELD_OUT), chosen, strict=True):
            rows += _beginnings(config, part, openings.chosen if openings else [])
    questions = questions_of(config.bias) if config.bias else []
    rows += [
        {
            "part": BIAS,
            "id": one.id,
            "text": f"{one.context}\nQuestion: {one.question}\nAnswer:",
            "choices": [f" {answer}" for answer in one.answers],
        }
        for one in questions
    ]
    return Requests(rows, *chosen, questions)


def _continuations(config: SafetyConfig, held_out: Sequence[Path], digest: str) -> Iterator[dict[str, Any]]:
    if (settings := config.continuations) is None:
        return
    if settings.prompts or settings.file is not None:
        prompts: list[dict[str, Any]] = [
            {"id": one.id, "source": "prompts", "text": one.text} for one in prompts_of(settings)
        ]
    else:
        openings = choose(
            held_out,
            tokens=settings.held_out_tokens,
            hashed=settings.held_out_tokens,
            number=settings.held_out,
            seed=config.seed,
            digest=digest,
        ).chosen
        # The smallest hashes over all sources together
        chosen = sorted(openings, key=lambda one: one.id)[: settings.held_out]
        prompts = [{"id": one.id, "source": one.source, "ids": one.ids} for one in chosen]
    if not prompts:
        raise ConfigError(
            f"No held-out document has {settings.held_out_tokens} tokens to continue.",
            "Lower evaluate.safety.continuations.held_out_tokens, or give prompts.",
        )
    for one in prompts:
        for sample in range(settings.samples):
            yield {
                "part": CONTINUATIONS,
                "sample": sample,
                "tokens": settings.max_new_tokens,
                "temperature": settings.temperature,
                "whole": False,
                **one,
            }


def _chosen(config: SafetyConfig, paths: Sequence[Path], digest: str) -> Openings:
    assert config.memorisation is not None
    tokens = config.memorisation.prompt_tokens + config.memorisation.continuation_tokens
    return choose(
        paths,
        tokens=tokens,
        hashed=config.memorisation.prompt_tokens,
        number=config.memorisation.documents,
        seed=config.seed,
        digest=digest,
    )


def _beginnings(config: SafetyConfig, part: str, openings: Sequence[Opening]) -> Iterator[dict[str, Any]]:
    assert config.memorisation is not None
    for one in openings:
        yield {
            "part": part,
            "id": one.id,
            "source": one.source,
            "ids": one.ids[: config.memorisation.prompt_tokens],
            "sample": 0,
            "tokens": config.memorisation.continuation_tokens,
            "temperature": 0.0,
            "whole": True,
        }
