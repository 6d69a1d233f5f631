"""Where a base model comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from tasks.stage.config import StageConfig


class BaseConfig(StageConfig):
    """A model in the format of transformers, in a folder or a repository of the hub, or a GGUF file, or an artifact."""

    folder: str | None = Field(
        None, min_length=1, description="folder with config.json, the weights as safetensors, and the tokenizer"
    )
    repository: str | None = Field(
        None, pattern=r"^[\w.-]+/[\w.-]+$", description="repository of the hub, such as HuggingFaceTB/SmolLM2-135M"
    )
    revision: str | None = Field(
        None,
        pattern="^[0-9a-f]{40}$",
        description="commit of the repository, with all 40 digits. Branches and tags are refused, as they could change",
    )
    gguf: str | None = Field(
        None,
        min_length=1,
        exclude_if=lambda value: value is None,  # so that keys from before this field stay valid
        description="GGUF file of a Llama. Its weights are dequantized to float32 once",
    )
    package: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][\w.-]*$",
        exclude_if=lambda value: value is None,
        description="installed Python package with the file `gguf`, whose path starts at the package's folder",
    )
    artifact: str | None = Field(
        None,
        min_length=1,
        exclude_if=lambda value: value is None,
        description="artifact with a model/, such as tiny/sft@1 or sft/0123abcd",
    )

    @property
    def named(self) -> str:
        """The name of the model in reports and cards."""
        if self.repository is not None:
            return f"{self.repository}@{self.revision}"
        return self.artifact or Path(str(self.gguf or self.folder)).expanduser().resolve().name

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(source is not None for source in (self.folder, self.repository, self.gguf, self.artifact)) != 1:
            raise ValueError("name one source: a folder, a repository with its revision, a gguf, or an artifact")
        if (self.repository is None) != (self.revision is None):
            raise ValueError("a repository and its revision go together: the commit, as 40 hexadecimal digits")
        if self.package is not None and self.gguf is None:
            raise ValueError("a package needs a gguf: the path of a file in it")
        return self
