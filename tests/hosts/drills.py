"""What can happen to a training on two hosts, and what must come of it: it goes on by itself, or ends with a sentence
that says what to do; and the weights are in the end those of a training that nothing disturbed.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any

from storage.digests import list_files, tree_digest
from tests.hosts.network import Host, two_hosts

MODULE = "tasks.pretrain.train"
STEPS = 120  # with a checkpoint each 20
DISTURBED = 45  # the first step after which something happens
PATIENCE = 240.0  # seconds, for a stage to start and train on a busy machine
NOTICED, LEFT = 45.0, 60.0  # seconds, until the stage reports the fault, and until a host's processes end
PORT = 29517


@dataclass
class Training:
    """A stage on one host, and its output."""

    host: Host
    folder: Path
    settings: dict[str, Any]
    process: Popen[str] | None = None
    begun: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)

    def start(self) -> None:
        """Start it, for the first time or again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.hosts.stage", str(self.folder), json.dumps(self.settings)]
        said = self.folder / "said"
        self.begun = said.stat().st_size if said.exists() else 0
        with said.open("a") as log:
            self.process = self.host.start(command, log, {})

    def said(self) -> list[dict[str, Any]]:
        """Everything that it printed since it was started."""
        with (self.folder / "said").open() as file:
            file.seek(self.begun)
            lines = file.read().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def until(self, wanted: Callable[[dict[str, Any]], bool], seconds: float = PATIENCE) -> dict[str, Any]:
        """The first matching line. Fails if none comes in time or the stage ends before."""
        assert self.process is not None
        deadline = time.monotonic() + seconds
        while True:
            ended = self.process.poll() is not None
            for line in self.said():
                if wanted(line):
                    return line
            in_time = not ended and time.monotonic() < deadline
            assert in_time, (self.folder / "said").read_text()[-3000:]
            time.sleep(0.1)

    def ended(self) -> dict[str, Any]:
        """How it ended, with the model's digest."""
        line = self.until(lambda line: "ended" in line or "error" in line)
        assert self.process is not None
        self.process.wait(30)
        return line

    @property
    def digest(self) -> str:
        """The digest of the model that it wrote."""
        return tree_digest(list_files(self.folder / "out" / "model"))


@dataclass
class Scene:
    """Two hosts and a folder that both see."""

    here: Host
    other: Host
    folder: Path
    steps: int = STEPS

    def training(self, name: str, **settings: Any) -> Training:
        """A stage that meets at the first host, unless settings say otherwise."""
        meeting = {"rendezvous": f"{self.here.address}:{PORT}", "hosts": 2, "steps": self.steps}
        return Training(self.here, self.folder / name, meeting | settings)

    def alone(self, name: str) -> Training:
        """A stage with as many processes, all on the first host."""
        return self.training(name, rendezvous=None, hosts=1, processes=2)

    @contextlib.contextmanager
    def joined(self, training: Training) -> Iterator[Popen[str]]:
        """Let the other host join as soon as the stage has started."""
        join = "import sys; from tasks.children import join, launchers; from tests.hosts.stage import MEETING_SECONDS\n"
        join += "launchers.MEETING_SECONDS = MEETING_SECONDS; join.main()"
        with (training.folder / "joined").open("a") as log:
            process = self.other.start([sys.executable, "-c", join, str(self.folder)], log, {})
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@dataclass
class Row:
    """The outcome of a drill."""

    drill: str
    noticed: float | None  # seconds from the disturbance until the stage reported it
    told: str
    resumed: int
    processes: int
    digest: str
    same: bool


def disturbed(line: dict[str, Any]) -> bool:
    """Whether the training is far enough to disturb it."""
    return int(line.get("step", 0)) >= DISTURBED


def lost(line: dict[str, Any]) -> bool:
    """Whether the stage reports that it lost its processes."""
    return str(line.get("note", "")).startswith("lost process") or "error" in line


def noticed(training: Training, since: float) -> tuple[float, str]:
    """The seconds until the stage reported the fault, and its words."""
    line = training.until(lost, NOTICED + 10)
    return time.monotonic() - since, str(line.get("note") or line["message"])


def to_the_end(scene: Scene, name: str) -> Training:
    """Train to the end on both hosts."""
    training = scene.training(name)
    training.start()
    with scene.joined(training):
        training.ended()
    return training


def start_and_finish(scene: Scene) -> tuple[float | None, str, Training]:
    """Nothing happens."""
    return None, "", to_the_end(scene, "finish")


def slow_link(scene: Scene) -> tuple[float | None, str, Training]:
    """One host's packets arrive late, or slowly."""
    how = scene.other.slow()
    return None, how, to_the_end(scene, "slow")


def straggler(scene: Scene) -> tuple[float | None, str, Training]:
    """One host is slower than the other, which waits for it in every step."""
    training = scene.training("straggler")
    training.start()
    with scene.joined(training):
        training.until(disturbed)
        began = time.monotonic()
        with scene.other.stuttering():
            line = training.until(lambda line: str(line.get("note", "")).startswith("slow host") or "ended" in line)
            seconds = time.monotonic() - began
        training.ended()
    return seconds, str(line.get("note", "not named")), training


def killed_and_back(scene: Scene) -> tuple[float | None, str, Training]:
    """All processes of one host are killed, and it joins again."""
    training = scene.training("killed")
    training.start()
    with scene.joined(training):
        training.until(disturbed)
        scene.other.kill()
        told = noticed(training, time.monotonic())
    with scene.joined(training):
        training.ended()
    return *told, training


def killed_for_good(scene: Scene) -> tuple[float | None, str, Training]:
    """All processes of one host are killed, and it does not return: the run goes on with the other one."""
    training = scene.training("alone")
    training.start()
    with scene.joined(training):
        training.until(disturbed)
        scene.other.kill()
        seconds, told = noticed(training, time.monotonic())
    end = training.ended()
    assert "hosts came to" in end["message"], end
    assert "fewer hosts" in end["remedy"], end
    training.settings |= scene.alone("").settings
    training.start()
    training.ended()
    return seconds, f"{told}; then: {end['message']}", training


def link_cut(scene: Scene) -> tuple[float | None, str, Training]:
    """The cable is pulled, and plugged in again once that was noticed. The host joins again by itself."""
    training = scene.training("cut")
    training.start()
    with scene.joined(training):
        training.until(disturbed)
        scene.other.link("down")
        told = noticed(training, time.monotonic())
        scene.other.link("up")
        training.ended()
    return *told, training


def without_power(scene: Scene) -> tuple[float | None, str, Training]:
    """One host loses its power without a packet to the other one, and joins again."""
    training = scene.training("power")
    training.start()
    with scene.joined(training):
        training.until(disturbed)
        scene.other.link("down")
        scene.other.kill()
        told = noticed(training, time.monotonic())
    scene.other.link("up")
    with scene.joined(training):
        training.ended()
    return *told, training


def stage_killed(scene: Scene) -> tuple[float | None, str, Training]:
    """The host of the stage loses its power without a packet to the ranks of the other one, which must end. Then the
    stage is run again."""
    training = scene.training("stage")
    training.start()
    with scene.joined(training) as process:
        training.until(disturbed)
        began = time.monotonic()
        scene.here.link("down")
        scene.here.kill()
        while [pid for pid in scene.other.processes() if _is_rank(pid)]:
            assert time.monotonic() < began + LEFT, "ranks outlived their stage"
            time.sleep(0.1)
        seconds = time.monotonic() - began
        assert process.poll() is None, "it waits for the stage to begin again"
        scene.here.link("up")
        training.start()
        training.ended()
    return seconds, "", training


DRILLS: dict[str, Callable[[Scene], tuple[float | None, str, Training]]] = {
    "start and finish": start_and_finish,
    "a host killed, which joins again": killed_and_back,
    "a host killed for good, on with one": killed_for_good,
    "link cut and restored": link_cut,
    "a host without power, which joins again": without_power,
    "the stage's host without power, run again": stage_killed,
    "slow link": slow_link,
    "straggler": straggler,
}


def undisturbed(folder: Path, steps: int = STEPS) -> str:
    """The digest of the model of an undisturbed training on one host."""
    with two_hosts() as hosts:
        training = Scene(*hosts, folder, steps).alone("undisturbed")
        training.start()
        assert "ended" in training.ended()
        return training.digest


def drilled(name: str, folder: Path, expected: str, steps: int = STEPS) -> Row:
    """Run one drill on two hosts of its own."""
    with two_hosts() as hosts:
        seconds, told, training = DRILLS[name](Scene(*hosts, folder, steps))
        end = training.said()[-1]
        assert "ended" in end, end
        digest = training.digest
        return Row(name, seconds, told, end["resumed"], end["processes"], digest, digest == expected)


def _is_rank(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return MODULE.encode() in words and b"torch.distributed.run" not in words and b"-c" not in words
