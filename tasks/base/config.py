"""Where a base model comes from."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tasks.stage.config import StageConfig


class BaseConfig(StageConfig):
    """A model in the format of transformers: a folder on this machine, or a repository of the Hugging Face hub."""

    folder: str | None = Field(
        None, min_length=1, description="folder with config.json, the weights as safetensors, and the tokenizer"
    )
    repository: str | None = Field(
        None, pattern=r"^[\w.-]+/[\w.-]+$", description="repository of the hub, such as HuggingFaceTB/SmolLM2-135M"
    )
    revision: str | None = Field(
        None,
        pattern="^[0-9a-f]{40}$",
        description="commit of the repository, all 40 digits; not a branch or a tag, which could change",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.folder is None) == (self.repository is None):
            raise ValueError("name either a folder, or a repository with its revision")
        if (self.repository is None) != (self.revision is None):
            raise ValueError("a repository and its revision go together: the commit, as 40 hexadecimal digits")
        return self
