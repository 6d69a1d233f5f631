"""Models in a GGUF file, which llama.cpp runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from models.runtimes.protocol import RuntimeFault
from storage.errors import ConfigError

if TYPE_CHECKING:
    from models.runtimes.llama_cpp import LlamaCppRuntime


def gguf_in(folder: Path) -> Path | None:
    """The GGUF file of a model folder, if any."""
    return next(iter(sorted(folder.glob("*.gguf"))), None)


def open_gguf(path: Path, threads: int) -> LlamaCppRuntime:
    """Open the file in llama.cpp. Raises ConfigError for a file that llama.cpp can't load."""
    from models.runtimes.llama_cpp import LlamaCppRuntime

    try:
        return LlamaCppRuntime(path, threads=threads)
    except RuntimeFault as error:
        raise ConfigError(f"{error}.", "Leave it out of evaluate.models.") from error
