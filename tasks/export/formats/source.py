"""What a format is written from: a model folder, text to calibrate on, and what the model was made of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DRAFT = "draft"  # folder in a release: a small model that guesses, a release of its own


@dataclass(frozen=True)
class Adapted:
    """A base of others, and the adapters that were trained beside it, one after the other, up to a model."""

    base: Path  # a model folder
    adapters: tuple[Path, ...]  # folders of PEFT
    name: str  # of the base: REPOSITORY@COMMIT where it is from a hub
    scratch: Path  # where the base may be written in another format, to be opened below the adapter


@dataclass(frozen=True)
class Source:
    """A model as transformers loads it, and what its formats may use to be written."""

    folder: Path  # config, safetensors, tokenizer, chat template
    calibration: tuple[tuple[int, ...], ...] = ()  # ids of held-out text that no proof is measured on, by window
    name: str = ""  # of the model, as a release calls it
    licence: str = ""  # of the weights, by its SPDX identifier
    threads: int = 1
    device: str = "cpu"
    dtype: str = "float32"  # of plain weights
    compute: str = "float32"  # what packed weights are multiplied in on a user's GPU
    adapted: Adapted | None = None  # where the model is a base with adapters, and a format asks for these
