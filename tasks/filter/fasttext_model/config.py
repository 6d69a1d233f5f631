"""How a fastText classifier is trained; the same for every family that trains one."""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig


class TrainingConfig(StageConfig):
    """fastText's own parameters (Joulin et al. 2016), and what is held out."""

    dim: int = Field(16, ge=4, le=300, description="width of the vectors; with two classes more brings little")
    epochs: int = Field(5, ge=1, le=100, description="passes over the examples")
    learning_rate: float = Field(0.5, gt=0, le=2, description="falls to 0 in a line; halved when numbers overflow")
    word_ngrams: int = Field(2, ge=1, le=5, description="longest run of words that counts as one feature")
    buckets: int = Field(200_000, ge=10_000, description="rows that word n-grams are hashed to")
    min_count: int = Field(2, ge=1, description="a rarer word has no row of its own")
    seed: int = Field(1, ge=0, description="seed of the first vectors")
    held_out: float = Field(
        0.2, gt=0, lt=0.6, description="share of the examples, by hash, that is never trained on; half of it calibrates"
    )
