"""What a profile says of the release: which formats, and how far each may be from the checkpoint."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, WithJsonSchema, field_validator, model_validator

from tasks.export.card.licences import Licence, SpdxLicence
from tasks.export.card.provenance import Provenance
from tasks.export.dtype import Dtype
from tasks.export.formats import FORMATS, GUESSED
from tasks.export.tolerance import Tolerance
from tasks.stage.config import StageConfig


def _known(name: str) -> str:
    if name not in FORMATS:
        raise ValueError(f"the formats are {', '.join(FORMATS)}")
    return name


BEST = "best"  # the link that the pipeline chooses
FormatName = Annotated[str, AfterValidator(_known), WithJsonSchema({"type": "string", "enum": list(FORMATS)})]


class SpeculationConfig(StageConfig):
    """How speculative decoding is measured: several tokens are guessed, and the model checks them in one pass."""

    guesses: int = Field(4, ge=1, le=64, description="tokens guessed at a time")
    ngram: int = Field(3, ge=1, description="tokens that are looked up in the text before, to guess what follows them")
    tokens: int = Field(64, ge=1, description="length of the continuations that are measured, in tokens")


class ExportConfig(StageConfig):
    """Formats, and how each is proved."""

    formats: list[FormatName] = Field(
        [name for name, chosen in FORMATS.items() if chosen.usual],
        min_length=1,
        description="what the release holds; int8 and int4 are bitsandbytes (LLM.int8, NF4) for transformers",
    )
    dtype: Dtype = Field(
        "auto",
        description="numbers of the plain weights; auto is bfloat16 where the model was trained in it, else float32",
    )
    link: str | None = Field(
        None,
        exclude_if=lambda link: link is None,
        description="base, or the stage of post-training whose model is released (default: the last); best: the last "
        "that was not worse on its held-out pairs than before its training",
    )
    tolerances: dict[FormatName, Tolerance] = Field(
        default_factory=dict, description="limits that replace the usual ones, by format"
    )
    prompts: list[Annotated[str, Field(min_length=1)]] = Field(
        ["The history of", "In the year 1850", "What is a river?"],
        min_length=1,
        description="texts whose greedy continuations are compared, and shown on the card",
    )
    greedy_tokens: int = Field(32, ge=1, description="length of those continuations, in tokens")
    positions: int = Field(4096, ge=8, description="positions in held-out text at which distributions are compared")
    calibration_tokens: int = Field(
        16384, ge=0, description="tokens of other held-out text that quantized formats are fitted to; 0: to none"
    )
    speculation: SpeculationConfig | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="measure speculative decoding, by n-grams and by the draft if there is one; null: by a draft alone",
    )
    tie: float = Field(
        0.02, ge=0, description="log-probability gap in nats below which either of two tokens counts as greedy"
    )
    name: str = Field("", pattern=r"^[^\x00-\x1f\x7f]*$", max_length=100, description="the model's, on its card")
    licence: str = Field("", description="what the model card says of the licences of the data")
    licences: dict[str, Licence] = Field(
        {}, description="licence of each source of data by its name, and of the model begun with, as `base`"
    )
    weights_licence: SpdxLicence | None = Field(
        None, description="licence of the weights, an SPDX expression such as Apache-2.0; null: none is granted"
    )
    provenance: Provenance | None = Field(
        None, exclude_if=lambda value: value is None, description="filled in by the pipeline, whatever a profile says"
    )

    def tolerance(self, name: str, dtype: str = "float32") -> Tolerance:
        """The profile's, or the usual one for plain weights of a dtype."""
        return self.tolerances.get(name, FORMATS[name].tolerance_of(dtype))

    @field_validator("formats")
    @classmethod
    def _each_once(cls, names: list[str]) -> list[str]:
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"it names {', '.join(twice)} twice")
        return names

    @model_validator(mode="after")
    def _text_to_fit_to(self) -> Self:
        if self.calibration_tokens == 0 and (fitted := [name for name in self.formats if FORMATS[name].needs_text]):
            raise ValueError(f"{', '.join(fitted)} can't be written with calibration_tokens 0; w4a16 needs no text")
        return self

    @property
    def guessed(self) -> list[str]:
        """Of the formats those whose runtimes take a draft, the best for a chat first."""
        return sorted((name for name in self.formats if name in GUESSED), key=lambda name: GUESSED[name].chat_rank)

    @property
    def needs_base(self) -> list[str]:
        """Of the formats those of an adapter, which needs its base."""
        return [name for name in self.formats if FORMATS[name].needs_base]

    def with_provenance(self, provenance: Provenance) -> ExportConfig:
        """With what the stages before have to say, so that it is in the key."""
        return self.model_copy(update={"provenance": provenance})
