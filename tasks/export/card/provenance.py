"""What the stages before a release have to say of it: sources, counts, precision.

A stage sees its inputs alone, and neither the manifests behind them nor the profile's other sections; what the card
tells of those must be in the key all the same, or an artifact from the store would tell of another run. So the pipeline
fills this part of the config in, and it is made of what a rerun would give again: no times, no paths, no machines.
"""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig


class StatedSource(StageConfig):
    """A source of data that the released model learned from."""

    name: str = Field(description="its name in counts and ledgers")
    used_as: list[str] = Field(description="documents, instructions, preferences or labelled")
    dataset: str = Field("", description="name on the hub, if it came from there")
    revision: str = Field("", description="commit of the data set")
    licence: str = Field("", description="as the profile states it; empty where nobody has")


class Training(StageConfig):
    """What a stage that trained counted."""

    stage: str = Field(description="its name")
    measures: dict[str, int | float] = Field(description="steps, tokens, losses: of its manifest's counts")


class Provenance(StageConfig):
    """Where the released model and its data come from."""

    link: str = Field(description="the link of the chain that is released")
    base: str = Field("", description="the model that training began with, if it was one of others")
    base_repository: str = Field("", description="its name on the hub, if it came from there")
    base_licence: str = Field("", description="its licence, as the profile states it")
    sources: list[StatedSource] = Field([], description="of the data")
    languages: list[str] = Field([], description="that the filter kept; empty where there was no filter")
    funnel: dict[str, int] = Field({}, description="how many documents, then tokens, were left after each stage")
    training: list[Training] = Field([], description="in the order of the chain")
    precision: str = Field("", description="of the last training's matrix products; empty where nothing was trained")
