"""The environments of a profile. No torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

import regex
from pydantic import Field, model_validator

from tasks.sandbox.config import SandboxConfig
from tasks.stage.config import StageConfig
from tasks.stage.user_function import UserFunction


class _Turns(StageConfig):
    turns: int = Field(4, ge=2, le=100, description="most answers of a conversation. One that goes on is unfinished")
    role: Literal["tool", "user"] = Field("tool", description="the role of what the environment says in the template")


class _Tool(_Turns):
    pattern: str | None = Field(
        None,
        min_length=1,
        description="regular expression whose first group is what the tool gets (default: the argument of a JSON call "
        "in <tool_call>, as Qwen, Hermes and SmolLM3 write it)",
    )
    shows_tools: bool = Field(
        True, description="whether the prompt describes the tool, by the chat template's part for tools"
    )

    @model_validator(mode="after")
    def _finds(self) -> Self:
        if self.pattern is not None:
            try:
                groups = regex.compile(self.pattern).groups
            except regex.error as error:
                raise ValueError(f"pattern {self.pattern!r} is not a regular expression: {error}") from error
            if not groups:
                raise ValueError(f"pattern {self.pattern!r} needs a group (…): the tool gets what it matches")
        return self


class CalculatorConfig(_Tool):
    """A calculator for sums, differences, products and quotients of numbers, with brackets."""

    kind: Literal["calculator"] = "calculator"


class PythonToolConfig(_Tool):
    """Python in the evaluation's sandbox. Each call is a program of its own, whose printed text is the reply."""

    kind: Literal["python"] = "python"
    sandbox: SandboxConfig = Field(SandboxConfig(), description="limits of a program")


class OwnEnvironmentConfig(_Turns, UserFunction):
    """Your own, a class with `reset(row)` and `step(answer)`."""

    section: ClassVar[str] = "environment"

    kind: Literal["own"] = "own"
    function: str = Field("Environment", pattern=r"^[A-Za-z_]\w*$", description="name of the class in `file`")
    seconds: float = Field(10.0, gt=0, le=3600, description="time of a reset or a step of all conversations together")
    max_failed_share: float = Field(
        0.1, ge=0, le=1, description="largest share of a step's conversations that it may break off"
    )


EnvironmentConfig = Annotated[CalculatorConfig | PythonToolConfig | OwnEnvironmentConfig, Field(discriminator="kind")]
