"""Checkpoints, which are pickles, loaded without running what they may hold.

The marker of a checkpoint vouches for its bytes (checkpoint_marker.py), but whoever can write the folder can write the
marker too. So nothing is unpickled freely either. torch's restricted unpickler lets in tensors, numbers, containers and
the four harmless classes that DeepSpeed keeps beside them; DeepSpeed itself asks torch for the unrestricted one, which
torch's own switch overrules. torch's distributed checkpoint unpickles its `.metadata` freely; here only with the
classes that it consists of.
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

SWITCH = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # whatever torch.load is called with
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
    """Whatever loads a checkpoint inside, a library too, gets nothing but states from it; `deepspeed` also lets in the
    classes that DeepSpeed's files have.

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
    """Turns the error of `states_only`, however it is wrapped, into a TrainingError that names the checkpoint."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except (pickle.UnpicklingError, CheckpointException) as error:
        found = next((one for one in causes(error) if isinstance(one, pickle.UnpicklingError)), None)
        if found is None:
            raise
        raise TrainingError(
            f"The checkpoint {folder} holds something else than states, which was not loaded: "
            f"{str(found).splitlines()[0]}",
            f"Delete {folder} to resume from the checkpoint before, and find out who wrote it.",
        ) from error


def load_states(path: Path, *, mmap: bool = False) -> Any:
    """What a file of DeepSpeed holds, on the CPU; with `mmap` tensors are read only where they are looked at."""
    with states_only(deepspeed=True):
        return torch.load(path, map_location="cpu", mmap=mmap, weights_only=True)


def _deepspeed_classes() -> list[Any]:
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]


class _MetadataUnpickler(pickle.Unpickler):
    """Knows the classes of a `.metadata` file, and no other."""

    def find_class(self, module: str, name: str) -> Any:
        """A class, or a type of numbers. Raises UnpicklingError for any other name."""
        known = (module, name) in METADATA or (module == "torch" and isinstance(getattr(torch, name, 0), torch.dtype))
        if not known:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a checkpoint's .metadata")
        return super().find_class(module, name)


@functools.cache
def _restrict_metadata() -> None:
    """For the rest of this process: accelerate makes readers of its own, and threads may read at the same time."""
    from torch.distributed.checkpoint import filesystem
    from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

    def read_metadata(self: filesystem.FileSystemReader, *args: Any, **kwargs: Any) -> Metadata:
        with self.fs.create_stream(self._get_metadata_path(kwargs.get("rank")), "rb") as file:
            metadata: Metadata = _MetadataUnpickler(file).load()
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata

    filesystem.FileSystemReader.read_metadata = read_metadata  # type: ignore[method-assign]
