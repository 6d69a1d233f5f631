"""A run says what each stage has moved between this machine and a bucket."""

from __future__ import annotations

import uuid
from pathlib import Path

from storage.artifact import Artifact
from storage.store import Store
from tasks.stage import stage
from tasks.stage.config import StageConfig
from tasks.stage.display.progress import Observer
from tasks.stage.output import Output
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


@stage(version=1, name="demo-read")
def read(config: StageConfig, moved: Artifact, out: Output) -> None:
    (out.path / "size.txt").write_text(str(moved.file("a.bin").stat().st_size))


def test_what_is_moved_is_said(tmp_path: Path) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    said, totals = [], []
    for machine, reads in (("one", False), ("one", False), ("two", False), ("two", True), ("three", True)):
        notes = Notes()
        session = Session(Store(url, cache=tmp_path / machine), runtime_of(workers=1), "test", observer=notes)
        with open_session(session):
            made, _ = moved.materialize(StageConfig(), ())
            if reads:
                read.materialize(StageConfig(), (made,))
        said.append(notes.kept)
        totals.append(session.told_traffic())
    assert said == [
        ["demo-moved: 0 B fetched from the bucket, 10.1 kB sent to it"],
        [],
        [],
        ["demo-read: 10.0 kB fetched from the bucket, 80 B sent to it"],
        [],
    ], "what nobody reads is not fetched"
    assert totals == [line and line[0].partition(": ")[2] for line in (said[0], "", "", said[3], "")]
