"""The release in a profile: which formats, and how far each may differ from the checkpoint."""

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
HOLD_VIRTUAL = ("safetensors", "adapter")  # the formats that hold virtual tokens: beside their base, or without it
FormatName = Annotated[str, AfterValidator(_known), WithJsonSchema({"type": "string", "enum": list(FORMATS)})]


class SpeculationConfig(StageConfig):
    """How speculative decoding is measured: several tokens are guessed, and the model checks them in one pass."""

    guesses: int = Field(4, ge=1, le=64, description="tokens guessed at a time")
    ngram: int = Field(3, ge=1, description="tokens looked up in the preceding text to guess the next ones")
    tokens: int = Field(64, ge=1, description="length of the measured continuations, in tokens")


class ExportConfig(StageConfig):
    """Formats, and how each is proved."""

    formats: list[FormatName] = Field(
        [name for name, chosen in FORMATS.items() if chosen.usual],
        min_length=1,
        description="formats of the release. int8 and int4 are bitsandbytes (LLM.int8, NF4) for transformers",
    )
    dtype: Dtype = Field(
        "auto", description="dtype of the plain weights. auto is bfloat16 if the model was trained in it, else float32"
    )
    link: str | None = Field(
        None,
        exclude_if=lambda link: link is None,
        description="base, or the stage of post-training whose model is released (default: the last). best: the last "
        "one not worse on its held-out pairs than before its training",
    )
    tolerances: dict[FormatName, Tolerance] = Field(
        default_factory=dict, description="limits that replace the default ones, by format"
    )
    prompts: list[Annotated[str, Field(min_length=1)]] = Field(
        ["The history of", "In the year 1850", "What is a river?"],
        min_length=1,
        description="texts whose greedy continuations are compared and shown on the card",
    )
    greedy_tokens: int = Field(32, ge=1, description="length of those continuations, in tokens")
    positions: int = Field(4096, ge=8, description="positions in held-out text at which distributions are compared")
    calibration_tokens: int = Field(
        16384, ge=0, description="tokens of other held-out text that quantized formats are fitted to (0: none)"
    )
    speculation: SpeculationConfig | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="measures speculative decoding by n-grams and by the draft, if any (null: only by a draft)",
    )
    tie: float = Field(
        0.02, ge=0, description="log-probability gap in nats below which either of two tokens counts as greedy"
    )
    name: str = Field("", pattern=r"^[^\x00-\x1f\x7f]*$", max_length=100, description="the model's name on its card")
    licence: str = Field("", description="the model card's statement on the licences of the data")
    licences: dict[str, Licence] = Field(
        {}, description="licence of each source of data by its name, and of the base model as `base`"
    )
    weights_licence: SpdxLicence | None = Field(
        None, description="licence of the weights, an SPDX expression such as Apache-2.0 (null: none is granted)"
    )
    provenance: Provenance | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="filled in by the pipeline, which overrides a profile's value",
    )

    def tolerance(self, name: str, dtype: str = "float32") -> Tolerance:
        """The profile's tolerance of a format, or the format's default for plain weights of a dtype."""
        return self.tolerances.get(name, FORMATS[name].tolerance_of(dtype))

    @field_validator("formats")
    @classmethod
    def _each_once(cls, names: list[str]) -> list[str]:
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"it names {', '.join(repeated)} twice")
        return names

    @model_validator(mode="after")
    def _text_to_fit_to(self) -> Self:
        if self.calibration_tokens == 0 and (fitted := [name for name in self.formats if FORMATS[name].needs_text]):
            raise ValueError(f"{', '.join(fitted)} can't be written with calibration_tokens 0 (w4a16 needs no text)")
        return self

    @property
    def guessed(self) -> list[str]:
        """The formats whose runtimes take a draft, the best for a chat first."""
        return sorted((name for name in self.formats if name in GUESSED), key=lambda name: GUESSED[name].chat_rank)

    @property
    def needs_base(self) -> list[str]:
        """The formats of an adapter, which need its base."""
        return [name for name in self.formats if FORMATS[name].needs_base]

    def with_provenance(self, provenance: Provenance) -> ExportConfig:
        """A copy with the reports of earlier stages, so that they enter the key."""
        return self.model_copy(update={"provenance": provenance})
