"""What a profile sets for preferences by AI feedback."""

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
        False, description="whether it also gives the answers that are revised or judged; false: the model does"
    )


class FeedbackConfig(StageConfig):
    """Preferences that a model gives, under written principles, on its own answers to prompts of the instructions."""

    mode: Literal["revise", "judge"] = Field(
        "revise",
        description="revise: an answer is criticised by a principle and written again; what was written again is "
        "preferred. judge: of sampled answers the better of each two is named, asked in both orders; the best is "
        "preferred to the worst",
    )
    principles: str | None = Field(
        None, min_length=1, description="text file with a principle a line (default: four of ours)"
    )
    prompts: int = Field(256, ge=1, description="prompts that are asked, drawn from the instructions")
    validation_share: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="share of conversations that are not asked about, nor others with their prompts: those that `sft` "
        "and others hold out, by the hash of their id",
    )
    samples: int = Field(4, ge=2, description="judge: answers to a prompt")
    temperature: float = Field(1.0, gt=0, description="judge: that of these samples; everything else is greedy")
    max_new_tokens: int = Field(128, ge=1, description="tokens of an answer, a critique or a revision")
    max_dropped_share: float = Field(0.9, ge=0, le=1, description="largest share of prompts without a pair")
    seed: int = Field(0, ge=0, description="seed of the draw of prompts and of the samples")
    endpoint: FeedbackEndpoint | None = Field(
        None, description="who criticises, revises or judges; null: the model of the link before"
    )

    @property
    def asks_model(self) -> bool:
        """Whether the model of the chain is asked anything."""
        return self.endpoint is None or not self.endpoint.answers

    @model_validator(mode="after")
    def _sets_what_counts(self) -> Self:
        if self.mode != "judge" and (self.samples, self.temperature) != (4, 1.0):
            raise ValueError(
                "samples and temperature are of `mode: judge`, which samples answers: set it, or leave them"
            )
        return self


def fingerprint(config: FeedbackConfig) -> dict[str, str]:
    """The SHA-256 of the file of principles. Raises SourceError for one that can't be read."""
    if config.principles is None:
        return {}
    path = Path(config.principles).expanduser()
    try:
        return {"principles": remembered_digests([path])[path]}
    except OSError as error:
        raise SourceError(f"feedback.principles: {path} can't be read: {error}.", "Check the path.") from error


def principles_of(config: FeedbackConfig) -> list[str]:
    """The principles, without blank lines and comments (#). Raises SourceError for a file without any."""
    if config.principles is None:
        return list(PRINCIPLES)
    path = Path(config.principles).expanduser()
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"feedback.principles: {path} can't be read: {error}.", "Save it as UTF-8.") from error
    found = [line for line in lines if line and not line.startswith("#")]
    if not found:
        raise SourceError(f"feedback.principles: {path} has no principle.", "Write one a line.")
    return found
