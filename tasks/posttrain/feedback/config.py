"""The settings of preferences by AI feedback."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from storage.digest_cache import remembered_digests
from storage.errors import SourceError
from tasks.endpoint.config import EndpointConfig
from tasks.stage.config import StageConfig

PRINCIPLES = (
    "The answer helps with what was asked, and with nothing else.",
    "The answer is true, and says so where it is not sure.",
    "The answer harms nobody and helps nobody to do harm.",
    "The answer is polite and short.",
)


class FeedbackEndpoint(EndpointConfig):
    """An OpenAI-compatible endpoint, which criticises, revises or judges in place of the model."""

    answers: bool = Field(
        False, description="whether it also writes the answers to be revised or judged (false: the model does)"
    )


class FeedbackConfig(StageConfig):
    """Preferences that a model gives, under written principles, on its own answers to prompts of the instructions."""

    mode: Literal["revise", "judge"] = Field(
        "revise",
        description="revise: an answer is criticised by a principle and written again. The revision is preferred. "
        "judge: the better of each two sampled answers is named, in both orders. The best is preferred to the worst",
    )
    principles: str | None = Field(
        None, min_length=1, description="text file with one principle a line (default: four of ours)"
    )
    prompts: int = Field(256, ge=1, description="number of prompts to draw from the instructions")
    validation_share: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="share of conversations to leave out, with all that have their prompts: those that `sft` and other "
        "methods hold out, by hash of their id",
    )
    samples: int = Field(4, ge=2, description="judge: answers to a prompt")
    temperature: float = Field(1.0, gt=0, description="judge: temperature of samples (everything else is greedy)")
    max_new_tokens: int = Field(128, ge=1, description="maximum tokens of an answer, a critique or a revision")
    max_dropped_share: float = Field(0.9, ge=0, le=1, description="largest share of prompts without a pair")
    seed: int = Field(0, ge=0, description="seed of the draw of prompts and of the samples")
    endpoint: FeedbackEndpoint | None = Field(
        None, description="endpoint that criticises, revises or judges (null: the model of the link before)"
    )

    @property
    def asks_model(self) -> bool:
        """Whether the chain's model gets any request."""
        return self.endpoint is None or not self.endpoint.answers

    @property
    def answer_tokens(self) -> int:
        """The longest answer of the chain's model, which leaves room for a prompt."""
        return self.max_new_tokens if self.asks_model else 0

    @model_validator(mode="after")
    def _sets_what_counts(self) -> Self:
        if self.mode != "judge" and (self.samples, self.temperature) != (4, 1.0):
            raise ValueError(
                "samples and temperature belong to `mode: judge`, which samples answers: set it, or leave them out"
            )
        return self


def fingerprint(config: FeedbackConfig) -> dict[str, str]:
    """The SHA-256 of the file of principles. Raises SourceError if it can't be read."""
    if config.principles is None:
        return {}
    path = Path(config.principles).expanduser()
    try:
        return {"principles": remembered_digests([path])[path]}
    except OSError as error:
        raise SourceError(f"feedback.principles: {path} can't be read: {error}.", "Check the path.") from error


def principles_of(config: FeedbackConfig) -> list[str]:
    """The principles, without blank lines and comments (#). Raises SourceError for a file without a principle."""
    if config.principles is None:
        return list(PRINCIPLES)
    path = Path(config.principles).expanduser()
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"feedback.principles: {path} can't be read: {error}.", "Save it as UTF-8.") from error
    principles = [line for line in lines if line and not line.startswith("#")]
    if not principles:
        raise SourceError(f"feedback.principles: {path} is empty.", "Write one principle a line.")
    return principles
