"""The section `synthesise` of a profile: the model and its prompts, and the documents that it is asked about.

Where the model answers is in `runtime.synthesise`: another address of the same model makes nothing again.
"""

from __future__ import annotations

from collections import Counter
from typing import Self

from pydantic import Field, field_validator, model_validator

from storage.errors import ConfigError
from storage.shards.documents import SYNTHETIC
from tasks.endpoint.config import EndpointConfig, Fields
from tasks.stage.config import StageConfig
from tasks.stage.runtime import SynthesiseRuntime
from tasks.synthesise.prompts import OURS, wrong_with

SOURCE = f"{SYNTHETIC}{{}}"  # the source of documents that a prompt made


class PromptConfig(StageConfig):
    """A request about a document: one of ours by its name, or your own text."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,59}$",
        description="its documents have the source `synthetic/NAME`. Without `file` and `text`: "
        f"{', '.join(OURS)}, which are ours",
    )
    file: str | None = Field(
        None, min_length=1, description="text file with the prompt, and {text} in the place of the document"
    )
    text: str | None = Field(
        None,
        description="the prompt itself. Besides {text} it may have {source}, {title}, {url}, {language} and "
        "{license}, which are empty for a document that states none. {{text}} stands for {text} as it is",
    )
    share: float = Field(1.0, gt=0, le=1, description="share of the chosen documents to ask it about, by hash")

    @model_validator(mode="after")
    def _is_one_text(self) -> Self:
        if self.file is not None and self.text is not None:
            raise ValueError(f"the prompt {self.name} has a file and a text: leave one out")
        if self.file is None and self.text is None and self.name not in OURS:
            raise ValueError(f"the prompt {self.name} is none of ours ({', '.join(OURS)}): set its file or its text")
        if self.text is not None and (wrong := wrong_with(self.text)):
            raise ValueError(f"the prompt {self.name} {wrong}")
        return self


class Length(StageConfig):
    """Characters of a document."""

    min: int = Field(200, ge=1, description="shorter ones aren't asked about")
    max: int | None = Field(None, ge=1, description="longer ones aren't asked about (null: no limit)")

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max is {self.max:,}, but min is {self.min:,}")
        return self


class SynthesiseConfig(StageConfig):
    """New documents that a model writes from downloaded ones. They pass all stages after it like any other text."""

    model: str = Field(
        min_length=1,
        description="name of the model at the endpoint of `runtime.synthesise`, which gets the text of all chosen "
        "documents",
    )
    fields: Fields = Field(EndpointConfig.model_fields["fields"].default, description="as those of `feedback.endpoint`")
    prompts: list[PromptConfig] = Field(min_length=1, description="what it is asked about each chosen document")
    sources: list[str] | None = Field(
        None, min_length=1, description="sources whose documents may be chosen (null: all)"
    )
    characters: Length = Field(default_factory=Length, description="length of documents that may be chosen")
    share: float = Field(1.0, gt=0, le=1, description="share of these documents to choose, by hash of their id")
    limit: int | None = Field(
        None, ge=1, description="maximum number of chosen documents, by hash. A larger one only adds some (null: none)"
    )
    excerpt: int = Field(
        12_000,
        ge=100,
        description="characters of a document that are sent. A longer one is cut after its last paragraph that fits, "
        "else after a sentence or a word",
    )
    max_new_tokens: int = Field(1024, ge=1, description="maximum tokens of an answer. One that was cut is no document")
    temperature: float = Field(0.7, ge=0, le=5, description="sampling temperature (0: the most likely answer)")
    top_p: float | None = Field(None, gt=0, le=1, description="nucleus of the sample (null: as the server has it)")
    seed: int = Field(0, ge=0, lt=2**31, description="seed of the samples. Each request has its own, derived from it")
    max_failed_share: float = Field(
        0.5, ge=0, le=1, description="largest share of answers that are no documents. More ends the run"
    )

    @field_validator("fields")
    @classmethod
    def _is_no_secret(cls, fields: Fields) -> Fields:
        return EndpointConfig(url="http://localhost", model="any", fields=fields).fields

    @model_validator(mode="after")
    def _has_one_prompt_of_a_name(self) -> Self:
        twice = [name for name, times in Counter(prompt.name for prompt in self.prompts).items() if times > 1]
        if twice:
            raise ValueError(f"two prompts are named {', '.join(twice)}: rename one")
        return self

    @property
    def new_sources(self) -> list[str]:
        """The sources of the new documents."""
        return [SOURCE.format(prompt.name) for prompt in self.prompts]

    def named_sources(self) -> dict[str, list[str]]:
        """The sources that this section names, by the path of the setting."""
        return {"sources": self.sources} if self.sources is not None else {}

    def endpoint(self, runtime: SynthesiseRuntime) -> EndpointConfig:
        """The endpoint with the model. Raises ConfigError without an address."""
        if runtime.url is None:
            raise ConfigError(
                "runtime.synthesise.url is missing: synthesise doesn't know where its model answers.",
                "Set it to the address of an OpenAI-compatible endpoint, such as http://127.0.0.1:8000/v1 of "
                "`gristmill serve`.",
            )
        return EndpointConfig(url=runtime.url, model=self.model, api_key_env=runtime.api_key_env, fields=self.fields)
