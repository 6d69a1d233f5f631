"""Reports of earlier stages for a release's card: sources, counts, precision.

A stage sees only its inputs, neither the manifests behind them nor the profile's other sections. What the card says of
those must be in the key nevertheless, or an artifact from the store might describe another run. So the pipeline fills
in this part of the config, with only what a rerun would give again: no times, no paths, no machines.
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
    licence: str = Field("", description="as the profile states it, or empty")


class DocumentLicence(StageConfig):
    """A licence that documents of a source state themselves."""

    source: str = Field(description="name of the source")
    licence: str = Field(description="as in the documents' metadata, or `not stated`")
    documents: int = Field(description="number of documents, as downloaded")


class Synthetic(StageConfig):
    """Text that a model wrote from documents of the sources."""

    model: str = Field(description="the model's name")
    prompts: list[str] = Field(description="names of the prompts that it was given")
    documents: int | None = Field(None, description="such documents that were trained on, if their number is known")
    tokens: int | None = Field(None, description="and their tokens")
    share: float | None = Field(None, description="of all tokens that were prepared for training")


class Training(StageConfig):
    """A stage that changed the model: how, and the counts of its training."""

    stage: str = Field(description="its name")
    how: str = Field("", description="an adapter, rewards, or what was merged", exclude_if=lambda how: not how)
    measures: dict[str, int | float] = Field(description="steps, tokens and losses from its manifest")


class Provenance(StageConfig):
    """The origin of the released model and its data."""

    link: str = Field(description="the link of the chain that is released")
    base: str = Field("", description="the existing model that training started from, if any")
    base_repository: str = Field("", description="its name on the hub, if it came from there")
    base_licence: str = Field("", description="its licence, as the profile states it")
    sources: list[StatedSource] = Field([], description="of the data")
    document_licences: list[DocumentLicence] = Field(
        [],
        description="of the sources of documents, where documents state a licence",
        exclude_if=lambda licences: not licences,  # so that keys from before this field stay the same
    )
    synthetic: Synthetic | None = Field(
        None, description="text that a model wrote, if any", exclude_if=lambda value: value is None
    )
    languages: list[str] = Field([], description="languages that the filter kept, empty without a filter")
    funnel: dict[str, int] = Field({}, description="documents, then tokens, left after each stage")
    training: list[Training] = Field([], description="in the order of the chain")
    precision: str = Field("", description="of the last training's matrix products, empty without training")
