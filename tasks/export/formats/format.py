"""The protocol of a release's format: how it is written, opened, judged, and loaded by users."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from storage.shards.arrays import Float32
from tasks.export.formats.source import Adapted, Source
from tasks.export.tolerance import Tolerance

if TYPE_CHECKING:
    from models.runtimes.protocol import ModelRuntime
    from models.runtimes.speculative import Guessing, Speculative


def missing(*packages: str) -> str | None:
    """A sentence naming the packages that are not installed, which the extra `export` brings. None if all are."""
    absent = [name.replace("_", "-") for name in packages if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)} not installed: pip install 'gristmill[export]'." if absent else None


class Format(Protocol):
    """One format. Its module imports torch only in functions, as profiles read the table of formats without it."""

    @property
    def tolerance(self) -> Tolerance:
        """How far it may differ from the checkpoint, unless the profile says otherwise."""
        ...

    @property
    def usual(self) -> bool:
        """Whether a release holds it unless the profile says otherwise."""
        ...

    @property
    def calibrated(self) -> bool:
        """Whether it is fitted to text, without which it is less accurate or can't be written."""
        return False

    @property
    def needs_text(self) -> bool:
        """Whether it can't be written without text to fit to."""
        return False

    @property
    def askable(self) -> bool:
        """Whether transformers or llama.cpp opens it, so that an evaluation can query it."""
        return True

    @property
    def chat_rank(self) -> int:
        """Among a release's formats, `gristmill chat` opens the one with the lowest rank."""
        ...

    @property
    def loading(self) -> str:
        """How to load it, as Markdown for the model card."""
        ...

    def needs(self) -> str | None:
        """A sentence on what this machine lacks to write and prove it, with the remedy. None if nothing is
        missing."""
        return None

    @property
    def needs_base(self) -> bool:
        """Whether it holds only changes to a base, and isn't a model without it."""
        return False

    def over(self, adapted: Adapted | None) -> Self:
        """The format, set to open a release over a base. The format itself if it needs none."""
        return self

    def path(self, release: Path) -> Path:
        """Its folder or file in a release. For plain weights this is the release itself: see `files`."""
        ...

    def tolerance_of(self, dtype: str) -> Tolerance:
        """Its tolerance if the release's plain weights have this dtype. Formats written from the checkpoint don't
        depend on it."""
        return self.tolerance

    def files(self, release: Path) -> list[Path]:
        """The files that it wrote into a release, none if the release doesn't hold it."""
        written = self.path(release)
        return [written] if written.is_file() else sorted(file for file in written.rglob("*") if file.is_file())

    def check(self, model: Path) -> None:
        """Raises ConfigError for a folder's model that the format can't hold. Reads its config and tokenizer, not its
        weights."""

    def check_range(self, model: Path, dtype: str) -> None:
        """Raises ConfigError for a folder's model with weights beyond the range of the format, or of plain weights of a
        dtype. Reads all weights."""
        return

    def remark(self, model: Path) -> str | None:
        """A half-sentence for the user if the format isn't quite what its name says for a folder's model, or doesn't
        run everywhere. Reads only what `check` does."""
        return None

    def write(self, source: Source, release: Path) -> None:
        """Write a model into a release. Raises ConfigError for a model that the format can't hold."""
        ...

    def open(self, release: Path, threads: int, device: str = "cpu") -> ModelRuntime:
        """Open the release in the runtime that the format is meant for, on a device if the runtime supports it. Raises
        RuntimeFault for files that the runtime can't load."""
        ...

    def settings(self, model: Path, release: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """The settings in the file that decide what is computed, and those expected for the checkpoint in `model`, by
        name. For a folder: its config.json and the other files next to the weights."""
        from models.pretrained import load_config
        from tasks.export.formats.companion_files import companion_settings
        from tasks.export.formats.config import portable_config

        path = self.path(release)
        folder = path if path.is_dir() else path.parent
        if not (folder / "config.json").is_file():
            return {}, {}
        actual, expected = (portable_config(load_config(where).to_dict()) for where in (folder, model))
        actual_files, expected_files = companion_settings(folder, model)
        return actual | actual_files, expected | expected_files

    def weights(self, model: Path, release: Path) -> Iterator[tuple[str, Float32]]:
        """The matrices as written, dequantized, under the names of the checkpoint in `model`. Tensors that a format
        merges or leaves out are not among them."""
        ...


@runtime_checkable
class GuessedFormat(Format, Protocol):
    """A format whose runtime decodes speculatively."""

    def draft(self, release: Path) -> Path:
        """The path of the draft in a release, as the runtime takes it."""
        ...

    def write_draft(self, source: Source, release: Path) -> None:
        """Write a draft into a release."""
        ...

    def speculative(self, release: Path, threads: int, device: str, guessing: Guessing | None) -> Speculative:
        """Open it to continue text with guesses, or without them for None. Raises RuntimeFault."""
        ...
