"""Loads checkpoints, which are pickles, without running code in them.

The marker of a checkpoint vouches for its bytes (checkpoint_marker.py), but whoever can write the folder can write the
marker too. So unpickling is restricted as well. torch's restricted unpickler admits tensors, numbers, containers and
the four harmless classes that DeepSpeed keeps beside them. DeepSpeed itself asks torch for the unrestricted one, which
torch's own switch overrules. torch's distributed checkpoint unpickles its `.metadata` freely. Here it admits only the
classes that such a file consists of.
"""

from __future__ import annotations

import functools
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from storage.errors import TrainingError, causes

SWITCH = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # overrules the arguments of torch.load
DESCRIPTIONS = "torch.distributed.checkpoint.metadata"
METADATA = {
    *(
        (DESCRIPTIONS, name)
        for name in (
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorStorageMetadata",
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "TensorProperties",
            "_MEM_FORMAT_ENCODING",
        )
    ),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),  # Python 3.13
}


@contextmanager
def states_only(*, deepspeed: bool = False) -> Iterator[None]:
    """Restricts all loading of checkpoints in the block, also by libraries, to states. `deepspeed` also admits the
    classes in DeepSpeed's files.

    Loading anything else raises pickle.UnpicklingError, which torch may wrap.
    """
    _restrict_metadata()
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "1"
    try:
        with torch.serialization.safe_globals(_deepspeed_classes() if deepspeed else []):
            yield
    finally:
        if before is None:
            del os.environ[SWITCH]
        else:
            os.environ[SWITCH] = before


@contextmanager
def refusing_code(folder: Path) -> Iterator[None]:
    """Turns the error of `states_only`, wrapped or not, into a TrainingError that names the checkpoint."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except (pickle.UnpicklingError, CheckpointException) as error:
        cause = next((one for one in causes(error) if isinstance(one, pickle.UnpicklingError)), None)
        if cause is None:
            raise
        raise TrainingError(
            f"The checkpoint {folder} contains more than states, which was not loaded: {str(cause).splitlines()[0]}",
            f"Delete {folder} to resume from the checkpoint before, and find out who wrote it.",
        ) from error


def load_states(path: Path, *, mmap: bool = False) -> Any:
    """The content of a file of DeepSpeed, on the CPU. With `mmap`, parts of tensors are read only when accessed."""
    with states_only(deepspeed=True):
        return torch.load(path, map_location="cpu", mmap=mmap, weights_only=True)


def _deepspeed_classes() -> list[Any]:
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]


class _MetadataUnpickler(pickle.Unpickler):
    """Admits only the classes of a `.metadata` file."""

    def find_class(self, module: str, name: str) -> Any:
        """A class, or a type of numbers. Raises UnpicklingError for any other name."""
        known = (module, name) in METADATA or (module == "torch" and isinstance(getattr(torch, name, 0), torch.dtype))
        if not known:
            raise pickle.UnpicklingError(f"{module}.{name} doesn't belong in a checkpoint's .metadata")
        return super().find_class(module, name)


@functools.cache
def _restrict_metadata() -> None:
    """Restrict the reading of `.metadata` for the rest of this process, not just for a block: accelerate creates its
    own readers, and threads may read at the same time."""
    from torch.distributed.checkpoint import filesystem
    from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

    def read_metadata(self: filesystem.FileSystemReader, *args: Any, **kwargs: Any) -> Metadata:
        with self.fs.create_stream(self._get_metadata_path(kwargs.get("rank")), "rb") as file:
            metadata: Metadata = _MetadataUnpickler(file).load()
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata

    filesystem.FileSystemReader.read_metadata = read_metadata  # type: ignore[method-assign]
