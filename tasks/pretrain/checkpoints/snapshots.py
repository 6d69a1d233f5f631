"""Snapshots: models saved during training, to study how it learns (Biderman et al. 2023, Pythia).

They are written atomically to the scratch folder, so that a resumed run keeps those before its checkpoint. At the end
they become part of the artifact.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from storage.files.flush import flush, link_or_copy
from tasks.pretrain.spec import TrainSpec

if TYPE_CHECKING:
    from tasks.pretrain.engines.base import Engine


class Snapshots:
    """Models in the format of transformers, `step-N/`, every `snapshot_every` steps."""

    def __init__(self, spec: TrainSpec) -> None:
        self.spec, self.folder = spec, spec.snapshots
        self.steps = spec.snapshot_steps

    def cut(self, step: int) -> None:
        """Remove those later than `step`, from which the run resumes, and half-written ones. Only one rank calls it."""
        kept = {f"step-{one}" for one in self.steps if one <= step}
        for path in self.folder.glob("*"):
            if path.name not in kept:
                shutil.rmtree(path)

    def take(self, engine: Engine, step: int) -> None:
        """Save the model if a snapshot is due at `step`. Every rank must call it."""
        if step not in self.steps:
            return
        model = engine.whole_model()
        if model is None:
            return
        from models.convert import save
        from models.foreign import ForeignDecoder
        from tasks.pretrain.engines.adapted import merge_adapter

        draft = self.folder / f"draft-{step}"
        if (adapter := self.spec.config.adapter) is not None and isinstance(model, ForeignDecoder):
            merge_adapter(model, adapter, self.spec, self.spec.scratch / "adapter")
        save(model, draft, self.spec.tokenizer, self.spec.base)
        for path in draft.iterdir():
            flush(path)
        draft.rename(self.folder / f"step-{step}")

    def publish(self, folder: Path) -> None:
        """Hard-link them into the artifact at `folder`: a run killed after this still resumes with them."""
        if self.steps:
            shutil.copytree(self.folder, folder, copy_function=link_or_copy)
