"""What a profile says of the release: which formats, and how far each may be from the checkpoint."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema

from tasks.export.formats import FORMATS
from tasks.export.tolerance import Tolerance
from tasks.stage.config import StageConfig


def _known(name: str) -> str:
    if name not in FORMATS:
        raise ValueError(f"the formats are {', '.join(FORMATS)}")
    return name


FormatName = Annotated[str, AfterValidator(_known), WithJsonSchema({"type": "string", "enum": list(FORMATS)})]


class ExportConfig(StageConfig):
    """Formats, and how each is proved."""

    formats: list[FormatName] = Field(
        [name for name, chosen in FORMATS.items() if chosen.usual],
        min_length=1,
        description="what the release holds; int8 and int4 are bitsandbytes (LLM.int8, NF4) for transformers",
    )
    link: str | None = Field(
        None,
        exclude_if=lambda link: link is None,
        description="base, or the stage of post-training whose model is released (default: the last)",
    )
    tolerances: dict[FormatName, Tolerance] = Field(
        default_factory=dict, description="limits that replace the usual ones, by format"
    )
    prompts: list[str] = Field(
        ["The history of", "In the year 1850", "What is a river?"],
        min_length=1,
        description="prompts whose greedy continuations are compared, as text and as a chat",
    )
    greedy_tokens: int = Field(32, ge=1, description="length of those continuations, in tokens")
    positions: int = Field(96, ge=8, description="positions in held-out text at which distributions are compared")
    tie: float = Field(
        0.02, ge=0, description="log-probability gap in nats below which either of two tokens counts as greedy"
    )
    licence: str = Field("", description="licence of data and weights, as the model card states it")

    def tolerance(self, name: str) -> Tolerance:
        """The profile's, or the usual one."""
        return self.tolerances.get(name, FORMATS[name].tolerance)
