"""The settings of one benchmark."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from tasks.sandbox.config import SandboxConfig
from tasks.stage.config import StageConfig

SEED = 1234  # the harness's own


class QuestionsConfig(StageConfig):
    """How a model is asked the questions of a benchmark."""

    shots: int | None = Field(None, ge=0, description="examples before each question (default: as the task says)")
    limit: int | None = Field(None, ge=1, description="number of questions used, the first ones (default: all)")
    chat: bool = Field(False, description="ask through the chat template, with examples as turns of a conversation")
    cluster: str | None = Field(
        None,
        description="column of the task's data with the same value for questions about the same text, by which "
        "standard errors are clustered",
    )
    generation: dict[str, Any] = Field(
        {}, description="arguments of generation that replace the task's, such as {max_gen_toks: 64}"
    )
    samples: int | None = Field(
        None,
        ge=1,
        description="answers drawn for each problem of a task that runs programs, for pass@k",
        exclude_if=lambda number: number is None,  # so that keys from before this field stay the same
    )
    k: list[Annotated[int, Field(ge=1)]] = Field(
        [],
        description="values of k, at most `samples`, to estimate pass@k for besides pass@1",
        exclude_if=lambda sizes: not sizes,
    )

    @model_validator(mode="after")
    def _samples_suffice_and_differ(self) -> Self:
        if self.k and max(self.k) > (self.samples or 1):
            raise ValueError(f"pass@{max(self.k)} needs {max(self.k)} samples per problem: set samples to that or more")
        drawn = self.generation.get("do_sample") is True and self.generation.get("temperature")
        if (self.samples or 1) > 1 and not drawn:
            raise ValueError(
                f"all {self.samples} samples of a problem would be the same: draw them, for example by "
                "generation: {do_sample: true, temperature: 0.8}"
            )
        return self


class ScoreConfig(QuestionsConfig):
    """One benchmark for one model."""

    task: str = Field(description="the benchmark")
    definition: str | None = Field(
        None, description="digest of its definition in the harness (null: it is in the data)"
    )
    seed: int = Field(SEED, ge=0, description="seed for choosing examples and for sampling")
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="dtype of weights and computation")
    batch_size: int = Field(32, ge=1, description="prompts answered at a time")
    sandbox: SandboxConfig = Field(SandboxConfig(), description="sandbox that runs models' programs")
