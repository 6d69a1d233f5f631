"""Faults of whole commands: `gristmill run` at a terminal or under a service manager, without and with a server."""

from __future__ import annotations

import fcntl
import os
import pty
import random
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass

from flows import server
from flows.guard.password import new_password, variables
from tasks.children.launchers import free_port
from tests.faults.kinds import KILLED, Kind, Met
from tests.faults.runner import TYPED
from tests.faults.scene import OVERRIDES, Scene, Undisturbed
from tests.pipeline.runs import ROOT, mind_signals

START_SECONDS = 8  # what the command takes before its first stage, at the least
HOLD_SECONDS = 4
LIMIT_SECONDS = 600
Strike = Callable[["Command"], bool]


class Command:
    """A run of the command line in a session of its own, on a terminal of its own."""

    def __init__(self, scene: Scene, stage: str, **settings: str) -> None:
        self.scene, self.home = scene, scene.local.parent / "prefect"
        arguments = [f"--set={value}" for value in (f"runtime.store={scene.url}", *OVERRIDES)]
        name, _, folder = scene.runner.mark.partition("=")
        environment = {**os.environ, name: folder, "PREFECT_HOME": str(self.home), "TMPDIR": str(scene.temporary)}
        environment |= settings
        self.terminal, theirs = pty.openpty()

        def take_terminal() -> None:
            mind_signals()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        with scene.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "flows.cli", "run", "smoke", f"--to={stage}", *arguments],
                cwd=ROOT,
                env=environment,
                stdin=theirs,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=take_terminal,
            )
        os.close(theirs)

    def wait(self) -> int:
        """Its exit code: TYPED for an error without a traceback."""
        try:
            code = self.process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.scene.hung = True
            os.killpg(self.process.pid, signal.SIGKILL)
            code = self.process.wait()
        os.close(self.terminal)
        traceback = "Traceback (most recent call last)" in self.scene.log.read_text(errors="replace")
        return TYPED if code == 1 and not traceback else code


@dataclass(frozen=True)
class OfCommand(Kind):
    """Something that happens to a command at a random instant; `strike` says whether it could."""

    name: str
    strike: Strike
    codes: frozenset[int]

    def meet(self, scene: Scene, base: Undisturbed, stage: str, chance: random.Random) -> Met:
        """The instant is drawn within the time that the stage takes undisturbed, and a start."""
        command = Command(scene, stage)
        time.sleep(chance.uniform(1, START_SECONDS + base.seconds[stage]))
        struck = command.process.poll() is None and self.strike(command)
        return Met(command.wait(), struck)


@dataclass(frozen=True)
class NamedServerRestarts(Kind):
    """The server that PREFECT_API_URL names is killed at a random instant, and started again."""

    name: str
    codes: frozenset[int]

    def meet(self, scene: Scene, base: Undisturbed, stage: str, chance: random.Random) -> Met:
        """The database is the same before and after."""
        port = str(free_port())
        address = f"http://127.0.0.1:{port}"
        start, password = [*server.SERVE, port], variables(new_password())
        environment = {**os.environ, "PREFECT_HOME": str(scene.local.parent / "named"), **password}
        with tempfile.TemporaryFile() as said:
            servers = [server.start(start, environment, said)]
            try:
                server.wait(address, servers[0], said, environment)
                command = Command(scene, stage, PREFECT_API_URL=f"{address}/api", **password)
                time.sleep(chance.uniform(1, START_SECONDS + base.seconds[stage]))
                struck = command.process.poll() is None
                os.killpg(servers[0].pid, signal.SIGKILL)
                servers[0].wait()
                servers.append(server.start(start, environment, said))
                return Met(command.wait(), struck)
            finally:
                server.stop(servers[-1:])


def _press_ctrl_c(command: Command) -> bool:
    os.write(command.terminal, b"\x03")
    return True


def _signal(number: signal.Signals, *, group: bool = False) -> Strike:
    def strike(command: Command) -> bool:
        (os.killpg if group else os.kill)(command.process.pid, number)
        return True

    return strike


def _freeze_group(command: Command) -> bool:
    os.killpg(command.process.pid, signal.SIGSTOP)
    time.sleep(HOLD_SECONDS)
    os.killpg(command.process.pid, signal.SIGCONT)
    return True


def _of(name: str, strike: Strike, *codes: int) -> OfCommand:
    return OfCommand(name, strike, frozenset(codes))


# Before a run has begun there is nothing to end in order, and the signal ends the process as any other
TERMINATED = (143, -signal.SIGTERM, 0)
OF_COMMANDS: list[Kind] = [
    _of("command: Ctrl-C at a terminal", _press_ctrl_c, 130, 0),
    _of("command: SIGTERM", _signal(signal.SIGTERM), *TERMINATED),
    _of("command: SIGTERM to the process group", _signal(signal.SIGTERM, group=True), *TERMINATED),
    _of("command: kill -9", _signal(signal.SIGKILL), KILLED),
    _of("command: kill -9 of the process group", _signal(signal.SIGKILL, group=True), KILLED),
    _of("command: SIGSTOP to the process group, then SIGCONT", _freeze_group, 0),
    NamedServerRestarts("command: the server of PREFECT_API_URL is restarted", frozenset({TYPED, 0})),
]
