"""The models to measure besides the links of the chain."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tasks.base.config import BaseConfig
from tasks.endpoint.config import EndpointConfig
from tasks.export.config import FormatName
from tasks.export.formats import FORMATS
from tasks.stage.config import StageConfig


class QuantizedConfig(StageConfig):
    """A model in one format of a release."""

    format: FormatName = Field(description="as export.formats names it")
    calibration_tokens: int = Field(16384, ge=0, description="tokens of held-out text that a fitted format uses")


class NamedModel(StageConfig):
    """A third-party model, a link in a format of a release, or an endpoint."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,59}$", description="its name in tables")
    base: BaseConfig | None = Field(None, description="a third-party model, with its own tokenizer")
    link: str | None = Field(
        None, min_length=1, description="base, or a stage of post-training, whose model is measured in `format`"
    )
    format: FormatName | None = Field(None, description="the format of `link`: int8, gguf-q4_0, …")
    endpoint: EndpointConfig | None = Field(
        None, description="an OpenAI-compatible endpoint, for benchmarks answered in text"
    )

    @property
    def in_transformers(self) -> bool:
        """Whether transformers runs it: neither an endpoint nor a GGUF file."""
        return self.endpoint is None and not (self.format or "").startswith("gguf")

    @model_validator(mode="after")
    def _is_one_model(self) -> Self:
        if sum(source is not None for source in (self.base, self.link, self.endpoint)) != 1:
            raise ValueError(f"{self.name} must be one of base, link and endpoint")
        if (self.link is None) != (self.format is None):
            raise ValueError(f"{self.name}: link and format go together")
        if self.format is not None and not FORMATS[self.format].askable:
            raise ValueError(f"{self.name}: neither transformers nor llama.cpp runs {self.format}")
        if self.format and FORMATS[self.format].needs_base:
            raise ValueError(f"{self.name}: {self.format} isn't a whole model, so measure the link itself")
        return self
