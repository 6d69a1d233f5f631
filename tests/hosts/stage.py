"""`python -m tests.hosts.stage FOLDER JSON`: the stage `pretrain` in a folder, as a run would call it.

Each of its notes and steps is a line on standard output, and so is what it ended with.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from storage.errors import GristmillError
from tasks.children import launchers
from tasks.pretrain import PretrainConfig, pretrain
from tasks.stage.display.progress import Observer, Progress
from tests.tasks.pretrain.tiny_training import MODEL, make_data, output

MEETING_SECONDS = 60  # in place of ten minutes, long enough on a busy machine


class Spoken(Observer):
    """Prints the stage's output, a JSON object a line."""

    def noted(self, stage: str, message: str) -> None:
        say(note=message)

    def progressed(self, progress: Progress) -> None:
        say(step=int(progress.done))


def say(**words: Any) -> None:
    """Print a line, and flush it."""
    print(json.dumps(words), flush=True)


def main() -> None:
    """Train, and print the digest of the model, or the error."""
    folder, asked = Path(sys.argv[1]), json.loads(sys.argv[2])
    launchers.MEETING_SECONDS = MEETING_SECONDS
    settings = {"global_batch": 4, "warmup_steps": 2, "sample_tokens": 4, "validation_every": 1000}
    config = PretrainConfig.model_validate({"model": MODEL, "steps": asked.pop("steps"), **settings})
    out = output(
        folder, engine="ddp", preflight="never", **{"checkpoint_every": 20, "log_every": 5, "threads": 1, **asked}
    )
    out.observer = Spoken()
    try:
        pretrain.function(config, *make_data(folder.parent / "data"), out)
    except GristmillError as error:
        say(error=type(error).__name__, message=error.message, remedy=error.remedy)
        sys.exit(1)
    say(ended=True, processes=out.facts["processes"], resumed=out.facts["resumed_from_step"])


if __name__ == "__main__":
    main()
