"""A checkpoint in which somebody put a pickle that runs code."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import torch

from tasks.training.checkpoint_marker import MARKER, flush_and_digest


class _Payload:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def plant_code(target: Path, ran: Path) -> None:
    """Replace a file by a pickle that makes the file `ran` wherever it is loaded."""
    if target.name == ".metadata":
        target.write_bytes(pickle.dumps(_Payload(ran)))
    else:
        torch.save({"module": _Payload(ran)}, target)


def mark_again(folder: Path) -> None:
    """Make the marker say that the files are as they are, as somebody can who may write the folder."""
    marker = json.loads((folder / MARKER).read_text())
    marker["files"] = {name: entry.model_dump() for name, entry in flush_and_digest(folder).items()}
    (folder / MARKER).write_text(json.dumps(marker))
