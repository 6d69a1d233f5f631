"""The files of a base model, in a folder of this machine or at a revision of the Hugging Face hub.

Only what is named here is read: neither code nor pickles.
"""

from __future__ import annotations

from pathlib import Path

from storage.errors import SourceError
from storage.remembered import remembered_digests
from tasks.base.config import BaseConfig

CONFIGS = ("config.json", "generation_config.json")
WEIGHTS = ("model*.safetensors", "model.safetensors.index.json")  # as transformers names them
TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "chat_template.json", "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model",
)  # fmt: skip


def fingerprint(config: BaseConfig) -> dict[str, str]:
    """What identifies the model: the SHA-256 of each of its files in a folder, or the revision. Raises SourceError."""
    if config.folder is None:
        return {str(config.repository): str(config.revision)}
    files = files_of(Path(config.folder).expanduser())
    try:
        return {f"base/{path.name}": digest for path, digest in remembered_digests(files).items()}
    except OSError as error:
        raise SourceError(f"The base can't be read: {error}.", "Replace the file.") from error


def files_of(folder: Path) -> list[Path]:
    """The files of a model that are read, by name. Raises SourceError for a folder that is none."""
    if not folder.is_dir():
        where = "" if folder.is_absolute() else f" in {Path.cwd()}, where the run started"
        raise SourceError(f"base.folder: there is no folder {folder}{where}.", "Check the path.")
    found = {path for pattern in (*CONFIGS, *WEIGHTS, *TOKENIZER) for path in folder.glob(pattern) if path.is_file()}
    return sorted(found)


def fetch(config: BaseConfig, scratch: Path) -> Path:
    """The folder with the files: that of the profile, or a copy of the revision in `scratch`. Raises SourceError."""
    if config.folder is not None:
        return Path(config.folder).expanduser()
    from httpx import HTTPError
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        patterns = [*CONFIGS, *WEIGHTS, *TOKENIZER]
        found = snapshot_download(
            str(config.repository), revision=config.revision, local_dir=scratch / "base", allow_patterns=patterns
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, HTTPError, OSError, ValueError) as error:
        raise SourceError(
            f"{config.repository} at {config.revision} can't be read: {error}.",
            "Check the name, the revision and the network, or download it and name its folder in base.folder.",
        ) from error
    return Path(found)
