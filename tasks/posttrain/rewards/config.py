"""The kinds of rewards. No torch."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import regex
from pydantic import Field, model_validator

from tasks.stage.config import StageConfig

KINDS = ("exact", "regex", "format", "length", "model")


class _Weighted(StageConfig):
    weight: float = Field(1.0, description="factor of this reward in the sum (below 0 it is a penalty)")

    @model_validator(mode="after")
    def _counts(self) -> Self:
        if not self.weight:
            raise ValueError("a reward of weight 0 changes nothing: leave it out")
        return self


class _Patterned(_Weighted):
    pattern: str = Field(min_length=1, description="regular expression, in the syntax of the package regex")

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        try:
            compiled = regex.compile(self.pattern)
        except regex.error as error:
            raise ValueError(f"pattern {self.pattern!r} is not a regular expression: {error}") from error
        if self._needs_group and not compiled.groups:
            raise ValueError(f"pattern {self.pattern!r} needs a group (…): groups are what is compared")
        return self

    @property
    def _needs_group(self) -> bool:
        return False


class ExactReward(_Weighted):
    """1 for an answer that equals the reference after Unicode NFKC and case folding, with each run of white space as
    one space and without punctuation at the ends."""

    kind: Literal["exact"] = "exact"
    match: Literal["equal", "contains"] = Field(
        "equal", description="contains: the reference is in the answer, between other words"
    )


class RegexReward(_Patterned):
    """1 if the last match of the pattern in the answer has the same groups as its last match in the reference."""

    kind: Literal["regex"] = "regex"

    @property
    def _needs_group(self) -> bool:
        return True


class FormatReward(_Patterned):
    """1 for an answer that the pattern matches as a whole, whether or not it is right."""

    kind: Literal["format"] = "format"


class LengthReward(_Weighted):
    """1 at the target, 0 at no tokens and at twice the target or more, and linear between."""

    kind: Literal["length"] = "length"
    target: int = Field(ge=1, description="tokens of an answer, including the one that ends it")


class ModelReward(_Weighted):
    """The reward by the model of the stage `reward`, minus its mean over the answers that it was trained on."""

    kind: Literal["model"] = "model"


Reward = Annotated[ExactReward | RegexReward | FormatReward | LengthReward | ModelReward, Field(discriminator="kind")]
