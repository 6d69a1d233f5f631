"""The settings of a sequence classifier: its source, its score, and the model before it."""

from __future__ import annotations

from typing import Literal, Self, TypeVar

from pydantic import Field, model_validator

from tasks.filter.fasttext_model.config import LabelledFile, TrainingConfig
from tasks.stage.config import StageConfig


class CascadeConfig(StageConfig):
    """A fastText model that settles clear pieces, trained on the classifier's own scores of a sample."""

    cut: float = Field(
        0.5, description="minimum score of the classifier for a high piece. Take the threshold of your rule"
    )
    agreement: float = Field(
        0.99,
        gt=0.5,
        lt=1,
        description="minimum share of the pieces settled as high, and of those settled as low, that the classifier "
        "puts on the same side of `cut`",
    )
    confidence: float = Field(
        0.95, ge=0.5, lt=1, description="confidence that the agreement is at least this (an exact binomial bound)"
    )
    sample: int = Field(
        10_000,
        ge=1000,
        description="documents, chosen by the hash of their ID. Both models score one piece of each: half of them to "
        "train on, a quarter to choose the cuts, a quarter for the figures",
    )
    training: TrainingConfig = Field(default_factory=TrainingConfig, description="fastText's parameters")


class ClassifierConfig(StageConfig):
    """A transformers sequence classifier, from a folder or a repository on the hub."""

    kind: Literal["classifier"] = "classifier"
    folder: str | None = Field(
        None, min_length=1, description="folder with config.json, the weights as safetensors, and the tokenizer"
    )
    repository: str | None = Field(None, pattern=r"^[\w.-]+/[\w.-]+$", description="repository on the hub")
    revision: str | None = Field(
        None, pattern="^[0-9a-f]{40}$", description="commit of the repository, with all 40 digits, not a branch or tag"
    )
    output: Literal["probability", "expected", "value"] = Field(
        "probability",
        description="the score: the probability of `label`, the expected value of the labels' numbers 0, 1, … by their "
        "probabilities, or the value that a regression outputs",
    )
    label: str | None = Field(None, description="label whose probability is the score, as in the model's config.json")
    activation: Literal["auto", "softmax", "sigmoid"] = Field(
        "auto",
        description="how outputs become probabilities. auto is sigmoid if the model's problem_type is "
        "multi_label_classification or it has one output, otherwise softmax",
    )
    pieces: Literal["windows", "paragraphs", "beginning"] = Field(
        "windows",
        description="pieces to score: windows cuts the whole text into pieces as long as the model can read, "
        "paragraphs also cuts at blank lines, and beginning scores only the first window, as most published "
        "classifiers of web pages do",
    )
    max_tokens: int | None = Field(
        None, ge=8, description="maximum tokens of a piece (default: as many as the model can read). Less is faster"
    )
    batch_tokens: int = Field(
        8192, ge=16, description="tokens scored at once, padding included. On a GPU more is faster"
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="precision of the weights and products. bfloat16 is for GPUs"
    )
    labelled: list[LabelledFile] = Field(
        [], description="texts of known classes: one half fits a sigmoid, the other gives precision by threshold"
    )
    first: CascadeConfig | None = Field(
        None, description="a fast model before this one, which settles the clear pieces, or null for none"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.folder is None) == (self.repository is None):
            raise ValueError("set one of them: a folder, or a repository with its revision")
        if (self.repository is None) != (self.revision is None):
            raise ValueError("a repository needs its revision, the commit as 40 hexadecimal digits, and vice versa")
        if (self.label is not None) != (self.output == "probability"):
            raise ValueError("output: probability needs a label, and other outputs don't take one")
        return self

    @property
    def named(self) -> str:
        """The classifier's name in messages."""
        return self.folder or f"{self.repository}@{self.revision}"


Model = TypeVar("Model")


def of_probability(config: Model) -> Model:
    """Raise ValueError for a classifier whose scores aren't between 0 and 1, as the thresholds are."""
    if isinstance(config, ClassifierConfig) and config.output != "probability":
        raise ValueError(f"its {config.output} is not a probability: put this classifier under filter.signals")
    return config
