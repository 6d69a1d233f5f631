"""Where a fault is met: a store as it is just before a stage, and a runner that makes the stage.

A folder's scene has links to the files of a store that knew no fault, so it costs nothing; `bucket.py` has the scene of
a bucket.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from storage.store import STORE_FILE, Store
from tests.faults.layer import Layer, What
from tests.faults.runner import Runner

DATA = "{kind: embedded, corpora: [encyclopedia], limit: 120, instructions: 120, preferences: 60, answer_words: 20}"
OVERRIDES = [
    f"download.sources=[{DATA}]",
    "pretrain.steps=12",
    "evaluate.language.validation_tokens=2048",
    "export.formats=[safetensors,gguf-f16]",
    "runtime.training.checkpoint_every=3",
]
HANG_SECONDS = 60  # and twenty times what the stage takes undisturbed
ORPHAN_SECONDS = 10


@dataclass(frozen=True)
class Undisturbed:
    """A store that knew no fault; for each stage, the digest of every artifact that a run to its end made (by
    location), and what that took: seconds, and operations on files."""

    store: Path
    made: dict[str, dict[str, str]]
    seconds: dict[str, float]
    operations: dict[str, dict[What, int]]

    def count(self, stage: str, what: What) -> int:
        """How many operations of these classes a stage makes."""
        return sum(number for one, number in self.operations[stage].items() if one & what)

    def before(self, stage: str) -> dict[str, str]:
        """The digests of what is there before a stage, by location."""
        stages = [*self.made]
        return {
            location: digest for name in stages[: stages.index(stage)] for location, digest in self.made[name].items()
        }


class Scene:
    """A runner with a file layer, a store and a folder of temporary files of its own, under `folder`."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.local, self.log, self.temporary = folder / "store", folder / "log", folder / "temporary"
        self.layer = Layer(folder)
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "XDG_CACHE_HOME": str(folder / "cache")}
        self.runner = Runner(folder, self.layer, {**caches, **(environment or {})})
        self.hung = False
        self._limit = 3600.0  # of a run that nobody disturbs
        self._over = threading.Event()

    @property
    def url(self) -> str:
        """What `runtime.store` is."""
        return str(self.local)

    def open(self) -> Store:
        """The store, for those who look at it afterwards."""
        return Store(str(self.local))

    def lay_out(self, base: Undisturbed, stage: str) -> None:
        """The store as it is just before `stage`: files of artifacts are links, all else is copied."""
        for folder in (self.local, self.temporary):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        self.log.write_text("")
        self._limit = HANG_SECONDS + 20 * base.seconds[stage]
        shutil.copy2(base.store / STORE_FILE, self.local)
        locations = base.before(stage)
        for location in locations:
            shutil.copytree(
                base.store / "artifacts" / location, self.local / "artifacts" / location, copy_function=os.link
            )
        stages = {location.partition("/")[0] for location in locations}
        for ref in sorted((base.store / "refs").rglob("*.json")):
            if ref.stem in stages:
                copied = self.local / ref.relative_to(base.store)
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ref, copied)

    def begin(self, stage: str) -> int:
        """Start a run that ends with `stage`; returns its process."""
        self.hung = False
        self._over.clear()
        process = self.runner.start(self.url, OVERRIDES, stage, self.log, self.temporary)
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return process

    def end(self) -> int:
        """Wait for the run; returns its exit code. One that stands still is killed, and `hung`."""
        code = self.runner.wait()
        self._over.set()
        self._watcher.join()
        return code

    def _watch(self) -> None:
        started = time.monotonic()
        while not self._over.wait(0.5):
            if self.layer.fired:
                self._send(signal.SIGCONT)  # what was stopped goes on after a moment
            if time.monotonic() - started > self._limit:
                self.hung = True
                self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        for pid in self.runner.others():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def orphans(self) -> list[str]:
        """The processes of a run that is over, once they have had time to end; they are killed."""
        deadline = time.monotonic() + ORPHAN_SECONDS
        while (left := self.runner.others()) and time.monotonic() < deadline:
            time.sleep(0.1)
        told = [f"process {pid} lives on: {_command(pid)}" for pid in left]
        self._send(signal.SIGKILL)
        return told

    def close(self) -> None:
        """End the runner."""
        self.runner.close()

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:120]
    return "gone"
