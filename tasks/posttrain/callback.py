"""What watches TRL's trainer: the log, the progress, and the mark that makes a checkpoint whole."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from storage.errors import TrainingError
from tasks.children.child import emit
from tasks.posttrain.spec import PosttrainSpec
from tasks.training.logs import append_log

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

MARKER = "complete.json"
LOGGED = {
    "loss": "loss",
    "learning_rate": "learning_rate",
    "grad_norm": "gradient_norm",
    "mean_token_accuracy": "token_accuracy",
    "rewards/accuracies": "preference_accuracy",
    "rewards/margins": "reward_margin",
}


class Watch(TrainerCallback):
    """A row a step, flushed to disk before a checkpoint's mark is set. Raises TrainingError for a NaN."""

    def __init__(self, spec: PosttrainSpec) -> None:
        self.spec = spec
        self.waiting: list[dict[str, Any]] = []

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, float], **_: Any
    ) -> None:
        """Once a step, and once more with totals, which are left out."""
        if "loss" not in logs:
            return
        row: dict[str, Any] = {"step": state.global_step}
        row |= {ours: float(logs[theirs]) for theirs, ours in LOGGED.items() if theirs in logs}
        for name, value in row.items():
            if not math.isfinite(value):
                raise TrainingError(
                    f"Step {row['step']}: {name} is {value}.", f"Lower {self.spec.method}.learning_rate and run again."
                )
        if not state.is_world_process_zero:
            return
        self.waiting.append(row)
        if state.global_step == state.max_steps or state.global_step % self.spec.runtime.training.log_every == 0:
            emit(step=state.global_step, steps=state.max_steps, loss=row["loss"])

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The trainer has written a checkpoint: flush it and mark it whole."""
        if not state.is_world_process_zero:
            return
        self.flush()
        folder = self.spec.checkpoints / f"checkpoint-{state.global_step}"
        for path in folder.rglob("*"):
            if path.is_file():
                _sync(path)
        draft = folder / f"{MARKER}.draft"
        draft.write_text(json.dumps({"identity": self.spec.identity, "step": state.global_step}))
        _sync(draft)
        draft.rename(folder / MARKER)

    def flush(self) -> None:
        """Write the rows that wait."""
        append_log(self.spec.log, self.waiting)
        self.waiting = []


def latest_checkpoint(spec: PosttrainSpec) -> tuple[Path | None, int]:
    """The newest whole checkpoint and its step; what a kill left half-written is removed.

    Raises TrainingError for a checkpoint of another run.
    """
    spec.checkpoints.mkdir(parents=True, exist_ok=True)
    whole: list[tuple[int, Path]] = []
    for folder in spec.checkpoints.glob("checkpoint-*"):
        if not (folder / MARKER).is_file():
            shutil.rmtree(folder)
            continue
        marker = json.loads((folder / MARKER).read_text())
        if marker["identity"] != spec.identity:
            raise TrainingError(
                f"The checkpoint {folder} was made with another config, model or data: going on from it is refused.",
                f"Delete {spec.checkpoints} to begin anew.",
            )
        whole.append((marker["step"], folder))
    step, folder = max(whole, default=(0, spec.checkpoints))
    return (folder if step else None), step


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
