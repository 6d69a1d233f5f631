"""Counts the memory that torch really allocates: every storage an operator makes, for as long as it lives."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveStorages(TorchDispatchMode):
    """`with LiveStorages() as live:` counts what operators inside it allocate, and nothing from before."""

    def __init__(self, *, peaks: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types
        self.made: dict[int, StorageWeakRef] = {}
        self.peaks = peaks  # whether to count after each operator
        self.peak = 0

    @property
    def size(self) -> int:
        """Bytes of those storages that are still alive, as large as they are now: FSDP empties some and keeps them."""
        total = 0
        for key, weak in list(self.made.items()):
            storage = torch.UntypedStorage._new_with_weak_ptr(weak.cdata)
            if storage is None:
                del self.made[key]
            else:
                total += storage.nbytes()
        return total

    @property
    def settled(self) -> int:
        """`size` once it stops falling: gloo's thread frees a collective's buffer after its end."""
        least, since = self.size, time.monotonic()
        while time.monotonic() - since < 0.2:
            time.sleep(0.02)
            if (size := self.size) < least:
                least, since = size, time.monotonic()
        return least

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {storage._cdata for storage in storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in storages(result):
            if storage._cdata not in before:  # otherwise a view, or changed in place
                self.made[storage._cdata] = StorageWeakRef(storage)
        if self.peaks:
            self.peak = max(self.peak, self.size)
        return result


def storages(tree: Any) -> list[torch.UntypedStorage]:
    """The storages of all tensors in nested containers, with repetitions. A DTensor's is that of its local part."""
    leaves = (getattr(leaf, "_local_tensor", leaf) for leaf in tree_leaves(tree))
    return [leaf.untyped_storage() for leaf in leaves if isinstance(leaf, torch.Tensor) and not leaf.is_meta]


def total(tree: Any) -> int:
    """Bytes of the tensors in nested containers, each storage once."""
    return sum({storage._cdata: storage.nbytes() for storage in storages(tree)}.values())
