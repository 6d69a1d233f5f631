"""A run says what each stage has moved between this machine and a bucket."""

from __future__ import annotations

import uuid
from pathlib import Path

from storage.store import Store
from tasks.stage import stage
from tasks.stage.config import StageConfig
from tasks.stage.output import Output
from tasks.stage.progress import Observer
from tasks.stage.session import Session, open_session
from tests.runtimes import runtime_of


class Notes(Observer):
    """Keeps what is noted."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def noted(self, stage: str, message: str) -> None:
        """See the base."""
        self.kept.append(f"{stage}: {message}")


@stage(version=1, name="demo-moved")
def moved(config: StageConfig, out: Output) -> None:
    (out.path / "a.bin").write_bytes(bytes(10_000))


def test_what_is_moved_is_said(tmp_path: Path) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    said = []
    for machine in ("one", "one", "two"):
        notes = Notes()
        store = Store(url, cache=tmp_path / machine)
        with open_session(Session(store, runtime_of(workers=1), "test", observer=notes)):
            moved.materialize(StageConfig(), ())
        said.append(notes.kept)
    assert said == [
        ["demo-moved: 0 B fetched from the bucket, 10.1 kB sent to it"],
        [],
        ["demo-moved: 10.1 kB fetched from the bucket, 0 B sent to it"],
    ]
