"""The config of the stage `mix`: the mixtures that were tried, and what the best one is sought for."""

from __future__ import annotations

from pydantic import Field

from tasks.ablate.config import Target
from tasks.stage.config import StageConfig

Shares = dict[str, float]


class MixConfig(StageConfig):
    """A swarm of mixtures. The first is that of natural proportions."""

    natural: Shares = Field(min_length=2, description="share of each source in the training tokens")
    swarm: list[Shares] = Field(min_length=4, description="shares of each run. A source without one had none")
    earlier: int = Field(
        0,
        ge=0,
        description="number of the last runs that are models of an earlier swarm with other token shards. Their losses "
        "may all differ by one amount",
    )
    held_out: list[float] = Field(
        [], description="shares of documents that are held out of these token shards, and of the earlier ones"
    )
    target: Target = Field(description="what is to be predicted well")
    most: Shares = Field(description="largest share of a source that the profile's own run can read")
    seed: int = Field(0, ge=0, description="seed of the folds and of the resampling")
