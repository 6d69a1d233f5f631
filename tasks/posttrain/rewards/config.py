"""The kinds of rewards. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Literal, Self

import regex
from pydantic import Field, model_validator

from tasks.endpoint.config import EndpointConfig
from tasks.sandbox.config import SandboxConfig
from tasks.stage.config import StageConfig
from tasks.stage.user_function import UserFunction

LARGEST = 1e9  # of a reward: float32, in which they are compared, has seven digits
DRAWN = (  # measures of a step, besides its rewards
    "answer_tokens",
    "answers_cut",
    "entropy",
    "kl",
    "groups_alike",
    "groups_refilled",
    "ratios_clipped_low",
    "ratios_clipped_high",
    "engine_difference",
    "engine_difference_largest",
    "engine_kl",
    "engine_ratio",
    "turns",
    "tool_calls",
    "tool_calls_failed",
    "conversations_unfinished",
)
OVERLONG = "overlong"  # the name of that penalty among the rewards
ROUNDING = 1e-9  # of sums of rewards: 0.7 + 0.2 + 0.1 is less than 1
KINDS = ("exact", "regex", "format", "length", "model", "python", "tests", "judge", "environment")


class _Weighted(StageConfig):
    weight: float = Field(1.0, description="factor of this reward in the sum (below 0 it is a penalty)")
    kind: str
    name: str | None = Field(
        None,
        pattern=r"^[a-z][a-z0-9_]*$",
        exclude_if=lambda name: name is None,
        description="name of its measures, which must differ between rewards (default: its kind)",
    )

    @property
    def title(self) -> str:
        """The name of its measures."""
        return self.name or self.kind

    @property
    def needs(self) -> tuple[str, ...]:
        """The fields of rows that it needs."""
        return ()

    @property
    def partial(self) -> bool:
        """Whether an answer may be without this reward, so that such answers are counted."""
        return False

    @property
    def bounded(self) -> bool:
        """Whether it is from 0 to 1, before its weight."""
        return self.kind not in ("model", "python", "environment")

    @model_validator(mode="after")
    def _counts(self) -> Self:
        if not self.weight:
            raise ValueError("a reward of weight 0 changes nothing: leave it out")
        if self.title.startswith("validation"):
            raise ValueError(f"the name {self.title} would be that of a validation's measure: choose another")
        return self


class _Fallible(_Weighted):
    max_failed_share: float = Field(
        0.1,
        ge=0,
        le=1,
        description="largest share of answers, of at least a hundred, for which it may fail. More ends the run",
    )

    @property
    def partial(self) -> bool:
        return True


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


class OverlongConfig(StageConfig):
    """Long answers lose reward before they are cut (Yu et al. 2025, equation 13): nothing up to `start` tokens, and
    from there linearly more up to `penalty` at max_new_tokens. Held-out rewards are without it."""

    start: int = Field(ge=0, description="tokens of an answer up to which nothing is lost")
    penalty: float = Field(1.0, gt=0, description="what an answer of max_new_tokens loses")


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


class PythonReward(_Fallible, UserFunction):
    """Your own function, `reward(prompts, answers, rows)`, which returns a number for each answer, or None for no
    reward. An `async def` is called for each answer by itself."""

    section: ClassVar[str] = "rewards"

    kind: Literal["python"] = "python"
    function: str = Field("reward", pattern=r"^[A-Za-z_]\w*$", description="name of the function in `file`")
    fields: list[Annotated[str, Field(min_length=1)]] = Field(
        [], description="fields of rows that it needs. Some source must keep them, and some row must have them"
    )
    seconds: float = Field(
        10.0, gt=0, le=3600, description="time of a call, with all answers of a step or with one by itself"
    )
    concurrent: int = Field(8, ge=1, le=1024, description="calls of an `async def` at a time")

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(self.fields)


class ProgramReward(_Weighted):
    """Whether the program in an answer passes the tests of its row, in a sandbox. The program is the last fenced block,
    or the whole answer if it has none."""

    kind: Literal["tests"] = "tests"
    field: str = Field(
        "tests", min_length=1, description="field of rows with the tests: Python source that raises, or a list of such"
    )
    credit: Literal["all", "share"] = Field(
        "all", description="all: 1 if every test passes. share: the share of the list's tests that pass, each run alone"
    )
    sandbox: SandboxConfig = Field(SandboxConfig(), description="limits of a program with its tests")

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.field,)

    @property
    def partial(self) -> bool:
        return True


class JudgeReward(_Fallible):
    """The opinion of a model behind an OpenAI-compatible endpoint, by a rubric: a score from 0 to 1, or whether an
    answer is better than its reference (1), worse (0) or neither (0.5)."""

    kind: Literal["judge"] = "judge"
    rubric: str = Field(min_length=1, description="text file that says what a good answer is")
    endpoint: EndpointConfig = Field(description="the judge. All prompts, answers and references are sent there")
    form: Literal["score", "compare"] = Field(
        "score", description="score: a number for each answer. compare: against the reference, in both orders"
    )
    lowest: float = Field(1.0, description="score: number of the worst answer, which earns 0")
    highest: float = Field(10.0, description="score: number of the best answer, which earns 1")
    shows_reference: bool = Field(False, description="score: whether the judge sees the reference")
    max_new_tokens: int = Field(256, ge=1, description="maximum tokens of an opinion")

    @model_validator(mode="after")
    def _sets_what_counts(self) -> Self:
        if self.lowest >= self.highest:
            raise ValueError("lowest must be below highest")
        if self.form == "compare" and (self.lowest, self.highest, self.shows_reference) != (1.0, 10.0, False):
            raise ValueError("lowest, highest and shows_reference belong to `form: score`: set it, or leave them out")
        return self


class EnvironmentReward(_Weighted):
    """The sum of the rewards that the environment gave for a conversation."""

    kind: Literal["environment"] = "environment"

    @property
    def partial(self) -> bool:
        return True


Reward = Annotated[
    ExactReward
    | RegexReward
    | FormatReward
    | LengthReward
    | ModelReward
    | PythonReward
    | ProgramReward
    | JudgeReward
    | EnvironmentReward,
    Field(discriminator="kind"),
]


def check_names(rewards: Sequence[Reward]) -> None:
    """Raises ValueError for two rewards of one name."""
    titles = [reward.title for reward in rewards]
    if twice := sorted({title for title in titles if titles.count(title) > 1}):
        raise ValueError(f"rewards has {twice[0]} twice, but measures are named by it: give each a `name` of its own")


def bounds_of(rewards: Sequence[Reward]) -> tuple[float, float]:
    """The lowest and the highest sum of rewards."""
    weights = [reward.weight for reward in rewards]
    if not all(reward.bounded for reward in rewards):
        return -math.inf, math.inf
    return sum(min(weight, 0.0) for weight in weights), sum(max(weight, 0.0) for weight in weights)


def check_none_of_environment(rewards: Sequence[Reward], why: str = "only grpo has environments") -> None:
    """Raises ValueError for the reward of an environment where nothing gives it, for the reason `why`."""
    if any(reward.kind == "environment" for reward in rewards):
        raise ValueError(f"{why}: leave the reward environment out, or set grpo.environment to one of kind own")


def measures_of(rewards: Sequence[Reward]) -> dict[str, str]:
    """The measures of rewards, by their names in a trainer: those of the answers, and of answers without. Their order,
    that of kinds, is their order in a log."""
    return dict(_measures(sorted(rewards, key=lambda reward: KINDS.index(reward.kind))))


def _measures(rewards: Sequence[Reward]) -> Iterator[tuple[str, str]]:
    for reward in rewards:
        yield f"rewards/{reward.title}/mean", f"{reward.title}_reward"
        if reward.partial:
            yield f"rewards/{reward.title}/failed", f"{reward.title}_failed"
            yield f"rewards/{reward.title}/none", f"{reward.title}_none"
