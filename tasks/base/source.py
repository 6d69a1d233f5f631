"""The files of a base model: from a folder, a revision of the Hugging Face hub, a GGUF file or an artifact.

Only the files named here are read: neither code nor pickles.
"""

from __future__ import annotations

import copy
import functools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.presets import Shape
from models.pretrained import stored_tensors
from storage.artifact import Artifact
from storage.digest_cache import remembered_digests
from storage.errors import ConfigError, SourceError
from tasks.base.check import check_files, check_sizes
from tasks.base.config import BaseConfig
from tasks.stage.named_artifact import named_artifact
from tasks.text.packages import package_file

if TYPE_CHECKING:
    from models.foreign import Adapt
    from models.memory.traced import Mark

CONFIGS = ("config.json", "generation_config.json", "adapter_config.json")
WEIGHTS = ("model*.safetensors", "model.safetensors.index.json")  # as transformers names them
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
)


def fingerprint(config: BaseConfig, section: str = "base") -> dict[str, str]:
    """The identity of the model: the SHA-256 of each of its files, the revision, or the digest of an artifact's model.
    Raises SourceError, and ConfigError for an artifact without a model, which name this section of the profile."""
    if config.repository is not None:
        return {config.repository: str(config.revision)}
    if config.artifact is not None:
        return {"artifact": model_of(config.artifact, section).digest}
    if config.gguf is not None:
        files = [gguf_of(config, section)]
    else:
        folder = Path(str(config.folder)).expanduser()
        files = files_of(folder, section)
        if section != "base":  # the stage `base` comes late there
            check_files(folder, f"model of {section}")
    try:
        return {f"base/{path.name}": digest for path, digest in remembered_digests(files).items()}
    except OSError as error:
        raise SourceError(f"The model of {section} can't be read: {error}.", "Replace the file.") from error


def gguf_of(config: BaseConfig, section: str = "base") -> Path:
    """The GGUF file of a profile, in a package or on this machine. Raises SourceError for a missing one."""
    if config.package is not None:
        return package_file(config.package, str(config.gguf))
    path = Path(str(config.gguf)).expanduser()
    if not path.is_file():
        raise SourceError(f"{section}.gguf: {path} is not a file{_seen_from(path)}.", "Check the path.")
    return path


def parameters_of_base(config: BaseConfig) -> int | None:
    """The number of weights of a base in files of this machine, from their headers. None for other bases, and for files
    that can't be read, which the stage `base` reports."""
    from safetensors import SafetensorError

    if config.repository is not None or config.artifact is not None:
        return None
    with suppress(OSError, ValueError, LookupError, AttributeError, SafetensorError, SourceError):
        if config.gguf is not None:
            from gguf import GGUFReader

            return sum(int(tensor.n_elements) for tensor in GGUFReader(gguf_of(config)).tensors)
        return sum(tensor.numbers for tensor in stored_tensors(Path(str(config.folder)).expanduser()).values())
    return None


def known_config(config: BaseConfig) -> Any:
    """transformers' config of a base in files of this machine. None for other bases, and for files that can't be read,
    which the stage `base` reports."""
    from models.pretrained import load_config

    if config.repository is not None:
        return None
    with suppress(*unreadable()):
        if config.gguf is not None:
            file = gguf_of(config)
            state = file.stat()
            known = copy.deepcopy(config_of_gguf(file, (state.st_ino, state.st_size, state.st_mtime_ns)))
        else:
            known = load_config(known_folder(config))
        check_sizes(known.to_dict(), {}, "base")  # else a module of a billion layers might be built
        return known
    return None


@functools.cache
def config_of_gguf(file: Path, state: tuple[int, ...]) -> Any:
    """transformers' config of a GGUF file in this state. It reads the whole vocabulary, which takes seconds, and a plan
    of many runs asks for each."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True, trust_remote_code=False)


def known_folder(config: BaseConfig) -> Path:
    """The folder with the model of a base that is neither a GGUF file nor on the hub."""
    folder = model_of(config.artifact).path if config.artifact is not None else Path(str(config.folder))
    return folder.expanduser()


@contextmanager
def described_folder(config: BaseConfig, known: Any) -> Iterator[Path]:
    """`known_folder`, or for a GGUF file, which has this config of transformers, a folder with that and no weights."""
    if config.gguf is None:
        yield known_folder(config)
        return
    from safetensors.numpy import save_file

    with tempfile.TemporaryDirectory() as made:
        known.save_pretrained(made)
        save_file({}, Path(made) / "model.safetensors")
        yield Path(made)


def unreadable() -> tuple[type[Exception], ...]:
    """What reading the files of a base may raise. The stage `base` reports it."""
    from huggingface_hub.errors import StrictDataclassError

    return OSError, ValueError, LookupError, AttributeError, TypeError, StrictDataclassError, SourceError


def shape_of_config(config: Any, adapt: Adapt | None = None, mark: Mark | None = None) -> Shape:
    """The shape of a model with this config of transformers, which computes it if our decoder can't, and with an
    adapter. `adapt` and `mark` are those of TracedShape. Raises ValueError for a model that can't be trained."""
    from models.convert import NotCarriedError, shape_of
    from models.memory.traced import TracedShape

    with suppress(NotCarriedError):
        if adapt is None:
            return shape_of(config)
    return TracedShape.of(config, adapt, mark=mark)


def model_of(name: str, section: str = "base") -> Artifact:
    """The model of an artifact. Raises ConfigError for an artifact without one."""
    artifact = named_artifact(f"{section}.artifact", name)
    if artifact.manifest is None or not any(file.startswith("model/") for file in artifact.manifest.files):
        raise ConfigError(
            f"{name} in {section}.artifact doesn't contain a model.",
            "Name an artifact of pretrain, base, sft or dpo (`gristmill store ls`).",
        )
    return artifact.part("model")


def files_of(folder: Path, section: str = "base") -> list[Path]:
    """The files of a model that are read, by name. Raises SourceError for a missing folder, and for one that has
    something else in place of a file."""
    if not folder.is_dir():
        raise SourceError(f"{section}.folder: {folder} is not a folder{_seen_from(folder)}.", "Check the path.")
    paths = {path for pattern in (*CONFIGS, *WEIGHTS, *TOKENIZER) for path in folder.glob(pattern)}
    if other := sorted(path.name for path in paths if path.exists() and not path.is_file()):
        raise SourceError(f"{section}.folder: {other[0]} in {folder} is not a file.", "Replace it.")
    return sorted(path for path in paths if path.is_file())


def link_files(folder: Path, scratch: Path) -> Path:
    """A folder with links to the files of a model that are read. transformers would also read others, which are not
    part of the model's identity."""
    target = scratch / "read"
    target.mkdir(parents=True, exist_ok=True)
    for path in files_of(folder):
        (target / path.name).unlink(missing_ok=True)
        os.symlink(path.resolve(), target / path.name)
    return target


def _seen_from(path: Path) -> str:
    return "" if path.is_absolute() else f" in {Path.cwd()}, where the run started"


def fetch(config: BaseConfig, scratch: Path) -> Path:
    """The folder with the files: that of the profile or of the artifact, or one in `scratch` with a copy of the
    revision or the converted GGUF file. Raises SourceError."""
    if config.folder is not None:
        return Path(config.folder).expanduser()
    if config.artifact is not None:
        return model_of(config.artifact).path
    if config.gguf is not None:
        from tasks.base.gguf import convert

        convert(gguf_of(config), scratch / "base")
        return scratch / "base"
    from httpx import HTTPError
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        patterns = [*CONFIGS, *WEIGHTS, *TOKENIZER]
        copy = snapshot_download(
            str(config.repository), revision=config.revision, local_dir=scratch / "base", allow_patterns=patterns
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, HTTPError, OSError, ValueError) as error:
        raise SourceError(
            f"{config.repository} at {config.revision} can't be read: {error}.",
            "Check the name, the revision and the network, or download it and set base.folder instead.",
        ) from error
    return Path(copy)
