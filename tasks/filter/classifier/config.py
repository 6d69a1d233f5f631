"""Which sequence classifier scores, what its score is, and what goes before it."""

from __future__ import annotations

from typing import Literal, Self, TypeVar

from pydantic import Field, model_validator

from tasks.filter.fasttext_model.config import LabelledFile, TrainingConfig
from tasks.stage.config import StageConfig


class CascadeConfig(StageConfig):
    """A fastText model that settles clear pieces, trained on the classifier's own scores of a sample."""

    cut: float = Field(
        0.5, description="score of the classifier from which a piece counts as high; take the threshold of your rule"
    )
    agreement: float = Field(
        0.99,
        gt=0.5,
        lt=1,
        description="share of the pieces settled as high, and of those settled as low, that the classifier puts on the "
        "same side of `cut`",
    )
    confidence: float = Field(
        0.95, ge=0.5, lt=1, description="confidence that the agreement is no lower (an exact binomial bound)"
    )
    sample: int = Field(
        10_000,
        ge=1000,
        description="documents, chosen by the hash of their ID, of each of which one piece is scored by both: half to "
        "train on, a quarter to choose the cuts, a quarter for the figures",
    )
    training: TrainingConfig = Field(default_factory=TrainingConfig, description="fastText's parameters")


class ClassifierConfig(StageConfig):
    """A sequence classifier of transformers, in a folder or in a repository of the hub."""

    kind: Literal["classifier"] = "classifier"
    folder: str | None = Field(
        None, min_length=1, description="folder with config.json, the weights as safetensors, and the tokenizer"
    )
    repository: str | None = Field(None, pattern=r"^[\w.-]+/[\w.-]+$", description="repository of the hub")
    revision: str | None = Field(
        None, pattern="^[0-9a-f]{40}$", description="commit of the repository, all 40 digits; not a branch or a tag"
    )
    output: Literal["probability", "expected", "value"] = Field(
        "probability",
        description="what the score is. probability: that of `label`; expected: the mean of the labels' numbers 0, 1, "
        "… weighted by their probabilities; value: the only output of a regression, as it is",
    )
    label: str | None = Field(None, description="label whose probability is the score, as in the model's config.json")
    activation: Literal["auto", "softmax", "sigmoid"] = Field(
        "auto",
        description="how outputs become probabilities. auto: sigmoid where the model's problem_type is "
        "multi_label_classification or it has one output, else softmax",
    )
    pieces: Literal["windows", "paragraphs", "beginning"] = Field(
        "windows",
        description="what is scored. windows: the whole text, cut where the model can't read on; paragraphs: cut at "
        "blank lines too; beginning: the first window alone, as most classifiers of web pages are published",
    )
    max_tokens: int | None = Field(
        None, ge=8, description="longest piece in tokens (default: what the model can read); less is faster"
    )
    batch_tokens: int = Field(
        8192, ge=16, description="tokens scored at once, padding included; on a GPU more is faster"
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="precision of the weights and products; bfloat16 is for GPUs"
    )
    labelled: list[LabelledFile] = Field(
        [], description="texts of known classes: one half fits a sigmoid, the other gives precision by threshold"
    )
    first: CascadeConfig | None = Field(
        None, description="a fast model before this one, which settles the clear pieces; null: none"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.folder is None) == (self.repository is None):
            raise ValueError("name one: a folder, or a repository with its revision")
        if (self.repository is None) != (self.revision is None):
            raise ValueError("a repository and its revision go together: the commit, as 40 hexadecimal digits")
        if (self.label is not None) != (self.output == "probability"):
            raise ValueError("a label goes with output: probability, and with no other")
        return self

    @property
    def named(self) -> str:
        """The classifier, as messages name it."""
        return self.folder or f"{self.repository}@{self.revision}"


Model = TypeVar("Model")


def of_probability(config: Model) -> Model:
    """Raises ValueError for a classifier whose scores are none that thresholds from 0 to 1 fit."""
    if isinstance(config, ClassifierConfig) and config.output != "probability":
        raise ValueError(f"its {config.output} is no probability: put this classifier under filter.signals")
    return config
