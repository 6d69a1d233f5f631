"""The input of a format: a model folder, text to calibrate on, and the base and adapters of the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DRAFT = "draft"  # folder in a release: a small model that guesses, laid out as a release


@dataclass(frozen=True)
class Adapted:
    """An existing base, and the adapters that were trained on it one after the other."""

    base: Path  # a model folder
    adapters: tuple[Path, ...]  # folders of PEFT
    name: str  # of the base: REPOSITORY@COMMIT if it is from a hub
    scratch: Path  # for the base in another format, to open the adapter over


@dataclass(frozen=True)
class Source:
    """A model as transformers loads it, and everything else that its formats may need."""

    folder: Path  # config, safetensors, tokenizer, chat template
    calibration: tuple[tuple[int, ...], ...] = ()  # ids of held-out text, by window, which the proof doesn't use
    name: str = ""  # of the model in a release
    licence: str = ""  # of the weights: an SPDX identifier
    threads: int = 1
    device: str = "cpu"
    dtype: str = "float32"  # of plain weights
    compute: str = "float32"  # dtype that a user's GPU multiplies packed weights in
    adapted: Adapted | None = None  # if the model is a base with adapters, and a format needs these
