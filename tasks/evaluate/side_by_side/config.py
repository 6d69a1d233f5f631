"""What a profile sets for comparing models side by side."""

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
    """Where the prompts come from: one of the two."""

    prompts: list[str] = Field([], description="prompts, each a user's turn")
    file: str | None = Field(None, min_length=1, description="JSON Lines with `prompt` or `messages`, and an `id`")


class AnswersConfig(StageConfig):
    """How a model answers. With an endpoint there is no model folder."""

    endpoint: EndpointConfig | None = Field(None, description="who answers; null: a model folder")
    samples: int = Field(1, ge=1, description="answers to a prompt")
    temperature: float = Field(0.0, ge=0, le=5, description="0: greedy")
    max_new_tokens: int = Field(256, ge=1, description="tokens of an answer at the most")
    seed: int = Field(0, ge=0, lt=2**31, description="seed of the samples")
    dtype: Dtype = Field("float32", description="numbers that a model folder computes with")
    batch_size: int = Field(16, ge=1, description="prompts in a batch")


class JudgementsConfig(StageConfig):
    """How an endpoint judges the answers of two models."""

    endpoint: EndpointConfig = Field(description="the judge")
    criterion: str = Field(CRITERION, min_length=1, description="what makes an answer the better one")
    max_new_tokens: int = Field(64, ge=1, description="tokens of a judgement at the most")
    max_dropped_share: float = Field(0.5, ge=0, le=1, description="largest share of comparisons without a judgement")
    seed: int = Field(0, ge=0, lt=2**31, description="sent with each request")


class SideBySideConfig(StageConfig):
    """Models compared by their answers to the same prompts, in pairs, by a judge."""

    prompts: list[str] | None = Field(
        None, min_length=1, description="what every model is asked (default: evaluate.prompts)"
    )
    file: str | None = Field(
        None,
        min_length=1,
        description="JSON Lines of prompts in place of `prompts`: `prompt` (a text, or messages) or `messages`, and an "
        "`id`, which is otherwise made of the text",
    )
    models: list[str] | None = Field(None, min_length=2, description="which models, by name (default: all)")
    endpoints: dict[str, EndpointConfig] = Field(
        {}, description="further models by name, each an OpenAI-compatible endpoint"
    )
    baseline: str | None = Field(
        None, min_length=1, description="the model that every other one is compared with; null: all pairs"
    )
    judge: Literal["reward", "endpoint", "none"] = Field(
        "none",
        description="reward: the higher reward of the profile's reward model wins. endpoint: judge_endpoint names the "
        "better answer, asked in both orders. none: answers alone, to be read or voted on",
    )
    judge_endpoint: EndpointConfig | None = Field(None, description="the judge of `judge: endpoint`")
    criterion: str = Field(
        CRITERION, min_length=1, description="judge_endpoint: what makes an answer the better one: it is better if …"
    )
    judge_tokens: int = Field(64, ge=1, description="judge_endpoint: tokens of a judgement at the most")
    max_dropped_share: float = Field(
        0.5, ge=0, le=1, description="judge_endpoint: largest share of a pair's comparisons without a judgement"
    )
    samples: int = Field(1, ge=1, description="answers to a prompt; more than one needs a temperature")
    temperature: float = Field(0.0, ge=0, le=5, description="0: the most likely answers; 1: samples")
    max_new_tokens: int = Field(256, ge=1, description="tokens of an answer at the most")
    seed: int = Field(0, ge=0, lt=2**31, description="seed of the samples and of the intervals")
    dtype: Dtype = Field("float32", description="numbers that models compute with")
    batch_size: int = Field(16, ge=1, description="prompts in a batch; padding changes the last digits of sums")
    resamples: int = Field(1000, ge=100, le=10_000, description="bootstrap samples for an interval")

    @field_validator("endpoints")
    @classmethod
    def _has_names(cls, endpoints: dict[str, EndpointConfig]) -> dict[str, EndpointConfig]:
        for name in endpoints:
            if not name or not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or len(name) > 60:
                raise ValueError(f"an endpoint's name is of letters, digits, dots, - and _, not {name[:60]!r}")
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
        """How one of the models answers. What an endpoint has no part in stays at its default."""
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
        """How the endpoint judges."""
        assert self.judge_endpoint is not None
        return JudgementsConfig(
            endpoint=self.judge_endpoint,
            criterion=self.criterion,
            max_new_tokens=self.judge_tokens,
            max_dropped_share=self.max_dropped_share,
            seed=self.seed,
        )


def names_of(config: SideBySideConfig, known: Sequence[str], *, judge: bool) -> list[str]:
    """The models that are compared, in order: those of `known` and the endpoints, or of these the ones that the config
    names. Raises ConfigError for a name that there is not, or twice, for fewer than two, and for a judge that is not
    there."""
    twice = sorted(set(known) & set(config.endpoints))
    if twice:
        raise ConfigError(f"{twice[0]} is both a model and an endpoint.", "Rename evaluate.side_by_side.endpoints.")
    every = [*known, *config.endpoints]
    chosen = list(dict.fromkeys(config.models or every))
    for name in [*chosen, *([config.baseline] if config.baseline else [])]:
        if name not in every:
            raise ConfigError(f"evaluate.side_by_side names {name}, which is no model.", f"Name {', '.join(every)}.")
    if config.baseline and config.baseline not in chosen:
        chosen.append(config.baseline)
    if len(chosen) < 2:
        raise ConfigError("One model can't be compared.", "Name a second in evaluate.side_by_side.models.")
    if config.judge == "reward" and not judge:
        raise ConfigError(
            "evaluate.side_by_side.judge is reward, but there is no reward model.",
            "Give the profile a section reward, or the judge an endpoint.",
        )
    return chosen
