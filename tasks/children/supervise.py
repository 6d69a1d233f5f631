"""Child processes for training, which never outlive the stage that started them.

Training runs in its own Python process, or in a fork of one (warm): the allocator and OpenMP read their settings only
at its start, torch and DeepSpeed keep global state, and a crash in native code must not take the flow down. The child
leads its own session, so that a whole process group can be ended. When its stage dies, the kernel kills it
(die_with_parent.py), and on other hosts it ends by itself (heartbeat.py).

The child reports in JSON lines on its standard output (child.py), which begin with the host's name if another host
writes them. Everything else that it prints goes to a log. A child that has sent a heartbeat and then stays silent for
longer than it announced counts as hanging, and is ended.

When the run is interrupted (Ctrl-C, SIGTERM), a training that can stop in order is asked to, and has
`runtime.training.stop_grace_seconds` to write a checkpoint. Another signal in the meantime ends it at once.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from storage import errors
from storage.errors import GristmillError, LostProcess, TrainingError
from tasks.children import launchers
from tasks.children.die_with_parent import STAGE_PID, tied_to
from tasks.children.environment import environment_file, training_environment
from tasks.children.heartbeat import FILE, VARIABLE, shown_alive
from tasks.children.hosts import hosts_of, on_other_hosts
from tasks.children.spec import ChildSpec
from tasks.children.warm.processes import CannotFork, Forked, ServerLost, fork, may_fork
from tasks.stage.output import Output

GRACE_SECONDS = 5.0  # between TERM and KILL
LEAVE_SECONDS = 20.0  # between a child's error and its end: a rank may wait for others that will never come
POLL_SECONDS = 0.5
# DeepSpeed's launcher exits with a killed rank's negative code, which the system makes 256 − signal
LAUNCHER_SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGTERM)
TORCHRUN_KILLED = re.compile(r"rank +: (\d+) .*\n +exitcode +: -(\d+)")  # in its table of failures
MESSAGE = re.compile(rb"(?:[\w.-]+: )?(\{.*\})\s*")  # pdsh, used with a hostfile, begins each line with the host
Process = subprocess.Popen[bytes] | Forked
Keeps = Literal["checkpoints", "answers", "nothing"]
RERUN: dict[Keeps, str] = {  # by what the child keeps
    "checkpoints": "A rerun resumes from the last checkpoint.",
    "answers": "A rerun resumes after the last stored answers.",
    "nothing": "A rerun starts the stage from scratch.",
}
NOBODY_CAME = "RendezvousTimeoutError"  # raised by torchrun's agent
LAST_LINES = 12  # lines of the log to quote when a child fails


def run_child(
    command: list[str],
    *,
    out: Output,
    environment: Mapping[str, str],
    log: Path,
    on_line: Callable[[dict[str, Any]], None] | None = None,
    keeps: Keeps = "nothing",
    stop: Path | None = None,
    warm: bool = True,
) -> None:
    """Run `command` to its end. `on_line` gets each JSON object that it prints. `environment` is the child's whole
    environment, `keeps` says what a rerun resumes from, and `stop` is the file that asks the child to write a
    checkpoint and end. A `warm` child is a fork if possible. If its server is killed, it is run once more as a new
    Python process.

    Raises the GristmillError that the child reported (the first one if several ranks did), a LostProcess with the last
    lines of `log` if it failed otherwise or hangs, or a TrainingError if it outlived `runtime.compute.timeout_minutes`.
    The first two have `exit_code` and `last_lines` among their facts. On any exception, Ctrl-C included, the child's
    whole process group is ended before the exception propagates.
    """
    limits = _Limits(out.stage, out.runtime.compute.timeout_minutes, keeps)
    log.parent.mkdir(parents=True, exist_ok=True)
    begun = log.stat().st_size if log.exists() else 0
    reported: dict[str, Any] | None = None
    crash = ""
    with log.open("ab", buffering=0) as log_file:
        process = _started(command, {**environment, STAGE_PID: str(os.getpid())}, log_file, warm)
        ending = _Ending(process, out, log_file)
        try:
            for line in _lines(process, limits):
                message = _message(line)
                if message is None:
                    log_file.write(line)
                elif "error" in message:
                    reported = reported or message  # the first: errors of other ranks follow from it
                    limits.leave()
                elif "crash" in message:
                    crash = crash or message["crash"]
                    limits.leave()
                elif "heartbeat" in message:
                    limits.heartbeat(message["heartbeat"])
                elif "hosts" in message:
                    limits.hosts = message["hosts"]
                elif "stoppable" in message:
                    ending.stop = stop  # from now on an interrupt asks first
                elif on_line is not None:
                    on_line(message)
            # Its output has ended. A child that said why may still take its moment to exit, and give its exit code
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(limits.left())
        except LostProcess as error:
            error.facts["last_lines"] = _last_lines(log, begun)
            raise
        finally:
            code = ending.end()
    # In order of what explains most: the child's own error, a killed server, hosts that never met, the exit code
    if reported:
        raise _typed(reported, code, _last_lines(log, begun))
    if code != 0:
        if isinstance(process, Forked) and process.lost:
            out.warn("the server that children are forked from was killed, and its child with it: running it once more")
            return run_child(
                command, out=out, environment=environment, log=log, on_line=on_line, keeps=keeps, stop=stop, warm=False
            )
        if NOBODY_CAME in _log_text(log, begun):
            raise _nobody_came(out)
        raise _failed(limits, code, crash, log, begun)


def run_module(
    module: str,
    spec: ChildSpec,
    out: Output,
    *,
    on_line: Callable[[dict[str, Any]], None],
    ranks: bool = True,
    keeps: Keeps = "checkpoints",
) -> dict[str, Any]:
    """Run `python -m module` on a spec and return its result: in as many ranks as the runtime says, or as one process.
    `keeps` says what a rerun resumes from.

    The spec and the child's log are in the scratch folder. A child that is lost after it wrote its result has done its
    work: gloo may abort while it takes down its threads. Raises as `run_child` does, and TrainingError if a pipe, a
    folder or a link, which a run never creates, is in the place of a file.
    """
    path, log, alive = (out.scratch / name for name in ("spec.json", "child.log", FILE))  # `join` looks here
    for file in (path, log, spec.stop, alive, spec.log, spec.result):
        check_plain(file)
    for leftover in (spec.stop, spec.result):
        leftover.unlink(missing_ok=True)
    path.write_text(spec.model_dump_json())
    command = (
        launchers.training_command(module, path, out.runtime.training, leads=True)
        if ranks
        else [sys.executable, "-m", module, str(path)]
    )
    if ranks and out.runtime.training.rendezvous is not None:
        launchers.check_meeting_place(out.runtime.training.rendezvous)
        work = out.scratch.parent.parent.resolve()
        out.note(f"waiting for the other hosts: on each run, once, `python -m tasks.children.join {work}`")
    environment = training_environment(out.runtime.compute, out.runtime.training.processes if ranks else 1, module)
    elsewhere = ranks and on_other_hosts(out.runtime.training)
    further = {VARIABLE: str(alive)} if elsewhere else {}
    if ranks and out.runtime.training.hostfile is not None:
        environment["DS_ENV_FILE"] = str(environment_file(out, further, module))
    environment |= further
    try:
        with shown_alive(alive, module) if elsewhere else contextlib.nullcontext():
            run_child(command, out=out, environment=environment, log=log, on_line=on_line, keeps=keeps, stop=spec.stop)
    except LostProcess as error:
        if not spec.result.exists():
            raise
        out.warn(f"the child had finished its work when it {error.facts['how']}: see {log}")
    result: dict[str, Any] = json.loads(spec.result.read_text())
    return result


def _started(command: list[str], environment: Mapping[str, str], log_file: IO[bytes], warm: bool) -> Process:
    """The command's process: if possible a fork of one that has imported its libraries."""
    for _ in range(2 if warm and may_fork(command) else 0):  # twice: a server may have died since its last use
        try:
            return fork(command, environment, log_file.fileno())
        except ServerLost:
            continue
        except CannotFork:
            break
    return subprocess.Popen(
        tied_to(os.getpid(), command),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log_file,
        start_new_session=True,
    )


@dataclass
class _Limits:
    """How long a child may run: in all, until its next heartbeat, and after its error."""

    stage: str
    minutes: float | None
    keeps: Keeps
    begun: float = field(default_factory=time.monotonic)
    silence: float = math.inf  # seconds that its last heartbeat announced, infinite before the first
    last_heard: float = 0.0
    leaves_by: float = math.inf
    hosts: list[str] = field(default_factory=list)  # the hosts that train, if several

    def heartbeat(self, seconds: float) -> None:
        """Note that the child is alive, and expect its next sign of life within `seconds`."""
        self.silence, self.last_heard = seconds, time.monotonic()

    def leave(self) -> None:
        """Note that the child has said why it ends, and give it a moment to do so."""
        self.silence, self.leaves_by = math.inf, min(self.leaves_by, time.monotonic() + LEAVE_SECONDS)

    def left(self) -> float | None:
        """The seconds that the child has to end by itself, None for as long as it takes."""
        return None if math.isinf(self.leaves_by) else max(0.0, self.leaves_by - time.monotonic())

    def passed(self) -> bool:
        """Whether a child that said why it ends should have ended by now.

        Raises TrainingError for one that has run out of time, LostProcess for one that hangs.
        """
        now = time.monotonic()
        if self.minutes is not None and now > self.begun + 60 * self.minutes:
            raise TrainingError(
                f"The child process of {self.stage} ran longer than runtime.compute.timeout_minutes and was ended.",
                f"Raise it, or give the stage less to do. {RERUN[self.keeps]}",
            )
        if now > self.last_heard + self.silence:
            raise LostProcess(
                f"The training of {self.stage}{self._where()} gave no sign of life for {self.silence:,.0f} seconds and "
                "was ended.",
                "If its steps take that long, raise runtime.pretrain.hang_minutes. "
                f"{'Otherwise check that these hosts can reach each other. ' if self.hosts else ''}A rerun resumes.",
                how="hung",
            )
        return now > self.leaves_by

    def _where(self) -> str:
        return f" on {', '.join(self.hosts)}" if self.hosts else ""


def _lines(process: Process, limits: _Limits) -> Iterator[bytes]:
    """The lines of the child's output until it ends. Polled, as a stray grandchild that holds the pipe must not block
    us."""
    pipe = process.stdout
    assert pipe is not None
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            ended = process.poll() is not None  # asked before the pipe is read: nothing of a dead child is missed
            if selector.select(0 if ended else POLL_SECONDS):
                data = os.read(pipe.fileno(), 1 << 16)
                *whole, rest = (rest + data).split(b"\n")
                yield from (line + b"\n" for line in whole)
                if not data:  # every process that held the pipe has closed it
                    break
            elif ended:  # the pipe is empty, and only a grandchild still holds it
                break
            if limits.passed():
                break
    if rest:
        yield rest + b"\n"


def _message(line: bytes) -> dict[str, Any] | None:
    match = MESSAGE.fullmatch(line)
    if match is None:
        return None
    try:
        value = json.loads(match[1])
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def check_plain(path: Path) -> None:
    """Raises TrainingError for anything but a regular file: opening a pipe would block, and a link leads elsewhere."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise TrainingError(f"{path} is not a regular file.", "Delete it and run again.")


@dataclass
class _Ending:
    """Ends a child. `stop` is the file that asks it to end by itself, None until it listens."""

    process: Process
    out: Output
    log_file: IO[bytes]
    stop: Path | None = None
    grace: float = GRACE_SECONDS

    def end(self) -> int:
        """Ask the child to stop if the run is being interrupted, then end it. Returns its exit code."""
        kind = sys.exc_info()[0]  # this runs in a `finally`: KeyboardInterrupt and the like are not Exceptions
        try:
            if kind is not None and not issubclass(kind, Exception) and self.stop is not None:
                # Whether it has used its time or a second signal cuts that short: no further grace after it
                self.grace = 0.0
                self._ask(self.stop)
        finally:  # a second signal raises inside `_ask`, and the group must end all the same
            code = self._end()
        return code

    def _ask(self, stop: Path) -> None:
        """Ask for a checkpoint and an end, and wait for it as long as the runtime says."""
        seconds = self.out.runtime.training.stop_grace_seconds
        limits = _Limits(self.out.stage, None, "checkpoints", leaves_by=time.monotonic() + seconds)
        # An OSError means that the terminal is closed, or the disk full
        with _signals_interrupt(), contextlib.suppress(OSError):
            stop.touch()
            self.out.note(
                f"stopping after this step with a checkpoint, within {seconds:g} s: a second signal ends it at once"
            )
            for line in _lines(self.process, limits):  # read on, or a full pipe would block the child
                self.log_file.write(line)

    def _end(self) -> int:
        """Send TERM, then KILL, to the whole group, which includes ranks and helpers that outlived the child."""
        process = self.process
        if process.poll() is None:
            _signal(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self.grace)
        _signal(process.pid, signal.SIGKILL)
        code = process.wait()
        if process.stdout is not None:
            process.stdout.close()
        return code


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Within the block another SIGTERM or SIGHUP interrupts too. The command's own handlers ignore them by then."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    mine = [number for number, handler in before.items() if handler != signal.SIG_IGN]  # nohup ignores SIGHUP
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        mine = []
    for number in mine:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, before[number])


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _typed(message: Mapping[str, Any], code: int, last_lines: list[str]) -> GristmillError:
    kind = getattr(errors, str(message["error"]), TrainingError)
    facts = {**message.get("facts", {}), "exit_code": code, "last_lines": last_lines}
    return kind(message.get("message", ""), message.get("remedy", ""), **facts)


def _failed(limits: _Limits, code: int, crash: str, log: Path, begun: int) -> LostProcess:
    text = _log_text(log, begun)
    how, last_lines = _how(code, crash, text), text.splitlines()[-LAST_LINES:]
    # The kernel's OOM killer leaves no trace in the process itself
    memory = "The system often kills a process like this because memory ran out: close other programs, "
    memory += "lower the stage's micro_batch, " if limits.keeps == "checkpoints" else ""
    memory += "or give the run more memory. "
    killed = "SIGKILL" in how  # then the end of the log doesn't say why
    quoted = ":\n" + "\n".join(f"  {line}" for line in last_lines) + "\n"
    return LostProcess(
        f"The child process of {limits.stage} {how}{'.' if killed else quoted}",
        f"{memory if killed else ''}The whole log is {log}. {RERUN[limits.keeps]}",
        how=how,
        exit_code=code,
        last_lines=last_lines,
    )


def _nobody_came(out: Output) -> TrainingError:
    training = out.runtime.training
    hosts = f"{out.stage}: not all of the {hosts_of(training)} hosts"
    if training.rendezvous is None:
        return TrainingError(
            f"{hosts} of the Slurm allocation met on its first node within {launchers.MEETING_SECONDS} seconds.",
            "Check that the nodes resolve each other's names and can reach each other, or leave one out (--exclude). "
            "On fewer nodes the run resumes from the last checkpoint.",
        )
    return TrainingError(
        f"{hosts} reached {training.rendezvous} within {launchers.MEETING_SECONDS} seconds.",
        "Run `gristmill join` on each of the others, which must reach that address and see the same working folders. "
        "To resume from the last checkpoint with fewer hosts, set runtime.training.hosts (for one host hosts 1 and "
        "rendezvous null) and runtime.training.processes.",
    )


def _how(code: int, crash: str, log: str) -> str:
    """How a child that wrote `log` ended. A killed rank counts before the `crash` of those that it left behind."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    how = f"ended with exit code {code}"
    for rank, number in TORCHRUN_KILLED.findall(log):
        if int(number) != signal.SIGTERM:  # torchrun itself sends it to the remaining ranks
            return f"{how} (rank {rank} was killed by {signal.Signals(int(number)).name})"
    if 256 - code in LAUNCHER_SIGNALS:
        how += f" (one of its ranks was killed by {signal.Signals(256 - code).name})"
    return f"{how}, {crash}" if crash else how


def _log_text(log: Path, begun: int) -> str:
    """The part of the log that this child wrote, which begins at byte `begun`."""
    with log.open("rb") as file:
        file.seek(begun)
        return file.read().decode(errors="replace")


def _last_lines(log: Path, begun: int) -> list[str]:
    return _log_text(log, begun).splitlines()[-LAST_LINES:]
