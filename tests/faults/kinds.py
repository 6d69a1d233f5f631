"""What every kind of fault is, and those that strike in the file layer or at a random instant.

A store commits by fsync and rename. Faults in the file layer come at an operation drawn among those that a stage makes
undisturbed, so each of its commit points is drawn sooner or later.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from tests.faults.layer import Armed, Effect, What
from tests.faults.runner import TYPED
from tests.faults.scene import Scene, Undisturbed

KILLED = -signal.SIGKILL
COMMIT = What.COMMITS | What.OPENS
DAY = 86_400


@dataclass(frozen=True)
class Met:
    """How a run that met a fault ended. It `struck` unless the run was over before."""

    code: int
    struck: bool


class Kind:
    """A kind of fault. `codes` are the exit codes that a run may end with; one that goes on ends with 0."""

    name: str
    codes: frozenset[int]

    def meet(self, scene: Scene, base: Undisturbed, stage: str, chance: random.Random) -> Met:
        """Run as far as the stage, with one fault of this kind, drawn by `chance`."""
        raise NotImplementedError


@dataclass(frozen=True)
class AtOperation(Kind):
    """A fault in the file layer, at the operation number `at` of those classes, or at one that is drawn."""

    name: str
    effect: Effect
    what: What
    codes: frozenset[int]
    values: tuple[int, ...] = (0,)
    at: int | None = None

    def meet(self, scene: Scene, base: Undisturbed, stage: str, chance: random.Random) -> Met:
        """The operation is drawn among those that the stage makes undisturbed."""
        at = self.at or chance.randint(1, max(1, base.count(stage, self.what)))
        fault = Armed(self.effect, self.what, at, chance.choice(self.values))
        scene.layer.arm(scene.local, fault)
        try:
            scene.begin(stage)
            code = scene.end()
        finally:
            scene.layer.disarm()
        return Met(code, scene.layer.fired)


@dataclass(frozen=True)
class Kill(Kind):
    """SIGKILL at a random instant, to the process group of the run or to one of its processes."""

    name: str
    codes: frozenset[int]
    whole_group: bool

    def meet(self, scene: Scene, base: Undisturbed, stage: str, chance: random.Random) -> Met:
        """The instant is drawn within the time that the stage takes undisturbed."""
        process = scene.begin(stage)
        time.sleep(chance.uniform(0, base.seconds[stage]))
        living = sorted(scene.runner.others())
        if process in living:
            with suppress(ProcessLookupError):
                if self.whole_group:
                    os.killpg(process, signal.SIGKILL)
                else:
                    os.kill(chance.choice(living), signal.SIGKILL)
        return Met(scene.end(), process in living)


def _at(name: str, effect: Effect, what: What, codes: Iterable[int], values: Iterable[int] = (0,)) -> AtOperation:
    return AtOperation(name, effect, what, frozenset(codes), tuple(values))


def killed_at(commit: int) -> AtOperation:
    """Kill -9 at the commit of this number."""
    return AtOperation(
        f"kill -9 at commit {commit}", Effect.KILL, What.COMMITS, frozenset({KILLED, TYPED, 0}), at=commit
    )


# A child that is killed, or refused a write, is reported by its stage, or replaced
ON_DISK: list[Kind] = [
    _at("kill -9 at a commit", Effect.KILL, COMMIT, (KILLED, TYPED, 0)),
    _at("kill -9 at a write", Effect.KILL, What.WRITES, (KILLED, TYPED, 0)),
    _at("kill -9 of the main process at a commit of any", Effect.KILL_MAIN, COMMIT, (KILLED,)),
    _at("half a write, then kill -9", Effect.TORN, What.WRITES, (KILLED, TYPED, 0)),
    _at("SIGTERM at a commit", Effect.SIGNAL_MAIN, COMMIT, (143,), (signal.SIGTERM,)),
    _at("SIGINT at a commit", Effect.SIGNAL_MAIN, COMMIT, (130,), (signal.SIGINT,)),
    _at("SIGHUP at a commit", Effect.SIGNAL_MAIN, COMMIT, (129,), (signal.SIGHUP,)),
    _at("disk full from a write on", Effect.FULL, What.WRITES | What.OPENS, (TYPED, 0)),
    _at("read-only from an operation on", Effect.READ_ONLY, COMMIT, (TYPED, 0)),
    _at("EIO from a write", Effect.ERROR, What.WRITES, (TYPED, 0), (errno.EIO,)),
    _at("EIO from a commit", Effect.ERROR, COMMIT, (TYPED, 0), (errno.EIO,)),
    _at("EIO from a read", Effect.ERROR, What.READS, (TYPED, 0), (errno.EIO,)),
    _at("short writes", Effect.SHORT, What.WRITES, (0,)),
    _at("slow disk", Effect.SLOW, COMMIT | What.WRITES, (0,)),
    _at("the clock jumps by a day or a year", Effect.CLOCK, COMMIT, (0,), (-DAY, DAY, -365 * DAY, 365 * DAY)),
    _at("SIGSTOP, then SIGCONT", Effect.STOPPED, COMMIT | What.WRITES, (0,)),
    Kill("kill -9 of the process group at an instant", frozenset({KILLED}), whole_group=True),
    Kill("kill -9 of one process at an instant", frozenset({KILLED, TYPED, 0}), whole_group=False),
]
