"""The training settings and labelled texts of a fastText classifier, for every family that trains one."""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig


class TrainingConfig(StageConfig):
    """fastText's own parameters (Joulin et al. 2016), and the held-out share."""

    dim: int = Field(16, ge=4, le=300, description="embedding width. With two classes a larger one gains little")
    epochs: int = Field(5, ge=1, le=100, description="passes over the training examples")
    learning_rate: float = Field(
        0.5,
        gt=0,
        le=2,
        description="initial learning rate, decayed linearly to 0. After a NaN, it is halved and training starts again",
    )
    word_ngrams: int = Field(2, ge=1, le=5, description="longest word n-gram used as a feature")
    buckets: int = Field(200_000, ge=10_000, description="hash buckets for word n-grams")
    min_count: int = Field(2, ge=1, description="minimum count of a word in the vocabulary")
    seed: int = Field(1, ge=0, description="seed for initialising the embeddings")
    held_out: float = Field(
        0.2,
        gt=0,
        lt=0.6,
        description="share of examples held out from training, chosen by hash. Half of them calibrate the scores, half "
        "are the test set",
    )


class LabelledFile(StageConfig):
    """Labelled texts on disk: `.csv` with a header, or `.jsonl`, such as `gristmill label` writes."""

    path: str = Field(description="path of the file, whose digest is part of the key")
    text_column: str = Field("text", description="column with the text")
    label_column: str = Field("label", description="column with the label")
    positive: list[str] = Field(min_length=1, description="labels of the positive class, as spelled in the file")
    negative: list[str] = Field(
        [],
        description="labels of the negative class, or empty for all that are not positive. Rows with any other label "
        "are left out",
    )
