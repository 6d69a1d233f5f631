"""The section `evaluate.side_by_side` of a profile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from storage.errors import ConfigError
from tasks.endpoint.config import EndpointConfig
from tasks.stage.config import StageConfig

CRITERION = "it does what was asked, is correct, and says so clearly and without padding"
Dtype = Literal["float32", "bfloat16", "float16"]


class PromptsConfig(StageConfig):
    """The prompts, from either of two sources."""

    prompts: list[str] = Field([], description="prompts, each a user's turn")
    file: str | None = Field(None, min_length=1, description="JSON Lines with `prompt` or `messages`, and an `id`")


class AnswersConfig(StageConfig):
    """How a model answers: an endpoint or, without one, a model folder."""

    endpoint: EndpointConfig | None = Field(None, description="endpoint that answers (null: a model folder)")
    samples: int = Field(1, ge=1, description="answers per prompt")
    temperature: float = Field(0.0, ge=0, le=5, description="sampling temperature (0: greedy)")
    max_new_tokens: int = Field(256, ge=1, description="maximum tokens of an answer")
    seed: int = Field(0, ge=0, lt=2**31, description="seed of the samples")
    dtype: Dtype = Field("float32", description="dtype of computation of a model folder")
    batch_size: int = Field(16, ge=1, description="prompts in a batch")


class JudgementsConfig(StageConfig):
    """How an endpoint judges the answers of two models."""

    endpoint: EndpointConfig = Field(description="the judge")
    criterion: str = Field(CRITERION, min_length=1, description="what makes an answer the better one")
    max_new_tokens: int = Field(64, ge=1, description="maximum tokens of a judgement")
    max_dropped_share: float = Field(0.5, ge=0, le=1, description="largest share of comparisons without a judgement")
    seed: int = Field(0, ge=0, lt=2**31, description="sent with each request")


class SideBySideConfig(StageConfig):
    """Models compared by their answers to the same prompts, in pairs, by a judge."""

    prompts: list[str] | None = Field(
        None, min_length=1, description="prompts for every model (default: evaluate.prompts)"
    )
    file: str | None = Field(
        None,
        min_length=1,
        description="JSON Lines of prompts instead of `prompts`: `prompt` (a text, or messages) or `messages`, and an "
        "`id`, by default derived from the text",
    )
    models: list[str] | None = Field(None, min_length=2, description="which models, by name (default: all)")
    endpoints: dict[str, EndpointConfig] = Field(
        {}, description="further models by name, each an OpenAI-compatible endpoint"
    )
    baseline: str | None = Field(
        None, min_length=1, description="the model that every other one is compared with (null: all pairs)"
    )
    judge: Literal["reward", "endpoint", "none"] = Field(
        "none",
        description="reward: the higher reward of the profile's reward model wins. endpoint: judge_endpoint names the "
        "better answer, in both orders. none: only answers, to read or vote on",
    )
    judge_endpoint: EndpointConfig | None = Field(None, description="the judge of `judge: endpoint`")
    criterion: str = Field(
        CRITERION, min_length=1, description="judge_endpoint: completes the sentence “an answer is better if …”"
    )
    judge_tokens: int = Field(64, ge=1, description="judge_endpoint: maximum tokens of a judgement")
    max_dropped_share: float = Field(
        0.5, ge=0, le=1, description="judge_endpoint: largest share of a pair's comparisons without a judgement"
    )
    samples: int = Field(1, ge=1, description="answers per prompt (more than one needs a temperature)")
    temperature: float = Field(0.0, ge=0, le=5, description="sampling temperature (0: the most likely answer)")
    max_new_tokens: int = Field(256, ge=1, description="maximum tokens of an answer")
    seed: int = Field(0, ge=0, lt=2**31, description="seed of the samples and of the intervals")
    dtype: Dtype = Field("float32", description="dtype of computation")
    batch_size: int = Field(16, ge=1, description="prompts in a batch (padding changes the last digits of sums)")
    resamples: int = Field(1000, ge=100, le=10_000, description="bootstrap samples for an interval")

    @field_validator("endpoints")
    @classmethod
    def _has_names(cls, endpoints: dict[str, EndpointConfig]) -> dict[str, EndpointConfig]:
        for name in endpoints:
            if not name or not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or len(name) > 60:
                raise ValueError(f"an endpoint's name may have letters, digits, dots, - and _, not {name[:60]!r}")
        return endpoints

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.prompts is not None and self.file is not None:
            raise ValueError("give prompts or a file of prompts, not both")
        if (self.judge == "endpoint") != (self.judge_endpoint is not None):
            raise ValueError("`judge: endpoint` and judge_endpoint belong together: set both, or neither")
        if self.samples > 1 and self.temperature == 0:
            raise ValueError("at temperature 0 all samples are the same: set a temperature, or samples to 1")
        return self

    def answers(self, endpoint: EndpointConfig | None = None) -> AnswersConfig:
        """The settings for one model's answers. Those that don't affect an endpoint stay at their defaults."""
        local = {} if endpoint else {"dtype": self.dtype, "batch_size": self.batch_size}
        return AnswersConfig.model_validate(
            {
                "endpoint": endpoint,
                "samples": self.samples,
                "temperature": self.temperature,
                "max_new_tokens": self.max_new_tokens,
                "seed": self.seed,
                **local,
            }
        )

    def judgements(self) -> JudgementsConfig:
        """The settings of the judging endpoint."""
        assert self.judge_endpoint is not None
        return JudgementsConfig(
            endpoint=self.judge_endpoint,
            criterion=self.criterion,
            max_new_tokens=self.judge_tokens,
            max_dropped_share=self.max_dropped_share,
            seed=self.seed,
        )


def names_of(config: SideBySideConfig, known: Sequence[str], *, judge: bool) -> list[str]:
    """The models to compare, in order: all of `known` and the endpoints, or those that the config names. Raises
    ConfigError for an unknown or repeated name, for fewer than two models, and for a missing judge."""
    repeated = sorted(set(known) & set(config.endpoints))
    if repeated:
        raise ConfigError(f"{repeated[0]} is both a model and an endpoint.", "Rename evaluate.side_by_side.endpoints.")
    every = [*known, *config.endpoints]
    chosen = list(dict.fromkeys(config.models or every))
    for name in [*chosen, *([config.baseline] if config.baseline else [])]:
        if name not in every:
            raise ConfigError(f"evaluate.side_by_side names the unknown model {name}.", f"Name {', '.join(every)}.")
    if config.baseline and config.baseline not in chosen:
        chosen.append(config.baseline)
    if len(chosen) < 2:
        raise ConfigError("A comparison needs two models.", "Name a second one in evaluate.side_by_side.models.")
    if config.judge == "reward" and not judge:
        raise ConfigError(
            "evaluate.side_by_side.judge is reward, but the profile lacks a reward model.",
            "Add a section reward to the profile, or use an endpoint as judge.",
        )
    return chosen
