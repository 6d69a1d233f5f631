"""`python -m tests.pipeline.pin_losses` writes smoke_losses.json anew, when what `smoke` learns is meant to change."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from storage.store import Store
from tasks.training.logs import read_log
from tests.pipeline.runs import finish, start

PINNED = Path(__file__).with_name("smoke_losses.json")
STEPS = 20


def first_losses(store: Path) -> list[float]:
    """The losses of the first steps of the one pretraining in a store."""
    opened = Store(str(store))
    (location,) = opened.locations("pretrain")
    artifact = opened.get(location)
    return [row["loss"] for row in read_log(artifact.path / "log.jsonl")[:STEPS]]


def main() -> None:
    """Run `smoke` as far as its pretraining, and pin what it lost."""
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(finish(start(Path(folder) / "store", "--to=pretrain")))
        PINNED.write_text(json.dumps(first_losses(Path(folder) / "store"), indent=2) + "\n")


if __name__ == "__main__":
    main()
