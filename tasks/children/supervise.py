"""Child processes for training, which never outlive the stage that started them.

Training runs in a Python of its own, or in the fork of one (warm): the allocator and OpenMP read their settings only at
its start, torch and DeepSpeed keep global state, and a crash in native code must not take the flow down. The child
leads a session of its own, so that a whole process group can be ended, and the kernel kills it when its stage dies
(die_with_parent.py); on other hosts it ends by itself then (heartbeat.py).

The child reports in JSON lines on its standard output (child.py), prefixed with the host's name where another host
writes; whatever else it prints goes to a log. A child that has sent a heartbeat and then stays silent for longer than
it announced hangs, and is ended.

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
LEAVE_SECONDS = 20.0  # between a child's error and its end; a rank may wait for others that will never come
POLL_SECONDS = 0.5
LAUNCHER_SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGTERM)  # as 256 − signal
TORCHRUN_KILLED = re.compile(r"rank +: (\d+) .*\n +exitcode +: -(\d+)")  # in its table of failures
MESSAGE = re.compile(rb"(?:[\w.-]+: )?(\{.*\})\s*")  # pdsh, which a hostfile asks for, begins each line with the host
Process = subprocess.Popen[bytes] | Forked
Keeps = Literal["checkpoints", "answers", "nothing"]
RERUN: dict[Keeps, str] = {  # what it does, by what the child keeps
    "checkpoints": "a rerun goes on from the last checkpoint",
    "answers": "a rerun goes on after the last answers that were kept",
    "nothing": "a rerun begins the stage anew",
}
NOBODY_CAME = "RendezvousTimeoutError"  # by torchrun's agent
LAST_LINES = 12  # of the log, quoted when a child fails


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
    """Run `command` to its end; `on_line` gets each JSON object that it prints. `environment` is the whole of it,
    `keeps` says what the child goes on from, and `stop` is the file that asks it to write one and end. A `warm` child
    is a fork where that can be; when what it was forked from is killed, it is begun once more, as a new Python.

    Raises the GristmillError that the child reported (the first, where several ranks did), a LostProcess with the last
    lines of `log` when it failed otherwise or hangs, or a TrainingError when it outlived
    `runtime.compute.timeout_minutes`. The first two have the `exit_code` and the `last_lines` among their facts. On any
    exception, Ctrl-C too, the child's whole process group is ended before the exception goes on.
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
                    reported = reported or message
                    limits.leave()
                elif "crash" in message:
                    crash = crash or message["crash"]  # the first; that of other ranks comes of it
                    limits.leave()
                elif "heartbeat" in message:
                    limits.heartbeat(message["heartbeat"])
                elif "hosts" in message:
                    limits.hosts = message["hosts"]
                elif "stoppable" in message:
                    ending.stop = stop
                elif on_line is not None:
                    on_line(message)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(limits.left())
        except LostProcess as error:
            error.facts["last_lines"] = _last_lines(log, begun)
            raise
        finally:
            code = ending.end()
    if reported:
        raise _typed(reported, code, _last_lines(log, begun))
    if code != 0:
        if isinstance(process, Forked) and process.lost:
            out.warn(
                "the server that children are forked from was killed, and its child with it; it is begun once more"
            )
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
    """Run `python -m module` on a spec and return what it measured: in as many ranks as the runtime says, or as one
    process. `keeps` says what a rerun goes on from.

    The spec and the child's log lie in the scratch folder. A child that is lost after it left its result has done its
    work: gloo may abort while it takes down its threads. Raises as `run_child`, and TrainingError where something that
    is no file, which a run never makes, lies in the place of one.
    """
    path, log, alive = (out.scratch / name for name in ("spec.json", "child.log", FILE))  # where hosts look that join
    for written in (path, log, spec.stop, alive, spec.log, spec.result):
        check_plain(written)
    for left in (spec.stop, spec.result):
        left.unlink(missing_ok=True)
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
    environment = training_environment(out.runtime.compute, out.runtime.training.processes if ranks else 1)
    elsewhere = ranks and on_other_hosts(out.runtime.training)
    told = {VARIABLE: str(alive)} if elsewhere else {}
    if ranks and out.runtime.training.hostfile is not None:
        environment["DS_ENV_FILE"] = str(environment_file(out, told))
    try:
        with shown_alive(alive, module) if elsewhere else contextlib.nullcontext():
            run_child(
                command, out=out, environment=environment | told, log=log, on_line=on_line, keeps=keeps, stop=spec.stop
            )
    except LostProcess as error:
        if not spec.result.exists():
            raise
        out.warn(f"the child had done its work when it {error.facts['how']}; {log} says more")
    result: dict[str, Any] = json.loads(spec.result.read_text())
    return result


def _started(command: list[str], environment: Mapping[str, str], log_file: IO[bytes], warm: bool) -> Process:
    """The command's process: a fork of one that has what it imports, where that can be."""
    for _ in range(2 if warm and may_fork(command) else 0):  # a server may have been killed since it was last used
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
    """How long a child may go on: in all, until its next heartbeat, and after its error."""

    stage: str
    minutes: float | None
    keeps: Keeps
    begun: float = field(default_factory=time.monotonic)
    silence: float = math.inf  # seconds that it asked for with its last heartbeat
    heard: float = 0.0
    leaves_by: float = math.inf
    hosts: list[str] = field(default_factory=list)  # those that train, where they are several

    def heartbeat(self, seconds: float) -> None:
        """It is alive, and will be heard of within so many seconds."""
        self.silence, self.heard = seconds, time.monotonic()

    def leave(self) -> None:
        """It said why it ends, and has a moment to do so."""
        self.silence, self.leaves_by = math.inf, min(self.leaves_by, time.monotonic() + LEAVE_SECONDS)

    def left(self) -> float | None:
        """Seconds that the child has to end by itself; None for as long as it takes."""
        return None if math.isinf(self.leaves_by) else max(0.0, self.leaves_by - time.monotonic())

    def passed(self) -> bool:
        """Whether a child that said why it ends should have ended. Raises for one that is not ending but must."""
        now = time.monotonic()
        if self.minutes is not None and now > self.begun + 60 * self.minutes:
            raise TrainingError(
                f"The child process of {self.stage} ran longer than runtime.compute.timeout_minutes and was ended.",
                f"Raise it, or give the stage less to do; {RERUN[self.keeps]}.",
            )
        if now > self.heard + self.silence:
            raise LostProcess(
                f"The training of {self.stage}{self._where()} gave no sign of life for {self.silence:,.0f} seconds and "
                "was ended.",
                "If its steps take that long, raise runtime.pretrain.hang_minutes"
                f"{'; if not, see that these hosts reach each other' if self.hosts else ''}; a rerun resumes.",
                how="hung",
            )
        return now > self.leaves_by

    def _where(self) -> str:
        return f" on {', '.join(self.hosts)}" if self.hosts else ""


def _lines(process: Process, limits: _Limits) -> Iterator[bytes]:
    """Lines of the child's output until it ends. Polled: a stray grandchild that holds the pipe must not block us."""
    pipe = process.stdout
    assert pipe is not None
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            ended = process.poll() is not None
            if selector.select(0 if ended else POLL_SECONDS):
                data = os.read(pipe.fileno(), 1 << 16)
                *whole, rest = (rest + data).split(b"\n")
                yield from (line + b"\n" for line in whole)
                if not data:
                    break
            elif ended:
                break
            if limits.passed():
                break
    if rest:
        yield rest + b"\n"


def _message(line: bytes) -> dict[str, Any] | None:
    found = MESSAGE.fullmatch(line)
    if found is None:
        return None
    try:
        value = json.loads(found[1])
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def check_plain(path: Path) -> None:
    """Neither a pipe, which would be waited for, nor a link, which leads elsewhere."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise TrainingError(f"{path} is no plain file.", "Delete it and run again.")


@dataclass
class _Ending:
    """How a child is ended; `stop` is the file that asks it to end by itself, once it listens."""

    process: Process
    out: Output
    log_file: IO[bytes]
    stop: Path | None = None
    grace: float = GRACE_SECONDS

    def end(self) -> int:
        """Ask it to stop where the run is being interrupted, then end it. The child's exit code."""
        kind = sys.exc_info()[0]
        try:
            if kind is not None and not issubclass(kind, Exception) and self.stop is not None:
                self.grace = 0.0  # it will have had its time, unless another signal says that there is none
                self._ask(self.stop)
        finally:
            code = self._end()
        return code

    def _ask(self, stop: Path) -> None:
        """Have it write a checkpoint, and wait for its end as long as the runtime says."""
        seconds = self.out.runtime.training.stop_grace_seconds
        limits = _Limits(self.out.stage, None, "checkpoints", leaves_by=time.monotonic() + seconds)
        # An OSError is that of a terminal that is closed, or of a disk that is full
        with _signals_interrupt(), contextlib.suppress(OSError):
            stop.touch()
            told = f"stopping after this step with a checkpoint, within {seconds:g} s; a second signal ends it at once"
            self.out.note(told)
            for line in _lines(self.process, limits):
                self.log_file.write(line)

    def _end(self) -> int:
        """TERM, then KILL, to the whole group: ranks and helpers that outlived the child too."""
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
    """Within the block another SIGTERM or SIGHUP interrupts too, although the command has begun to end."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    mine = [number for number, handler in before.items() if handler != signal.SIG_IGN]  # by nohup
    if threading.current_thread() is not threading.main_thread():
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
    # The kernel leaves no word in the process itself
    memory = "The system often kills a process like this because memory ran out: close other programs, "
    memory += "lower the stage's micro_batch, " if limits.keeps == "checkpoints" else ""
    memory += "or give the run more memory. "
    killed = "SIGKILL" in how  # then the log's end says nothing of why
    quoted = ":\n" + "\n".join(f"  {line}" for line in last_lines) + "\n"
    return LostProcess(
        f"The child process of {limits.stage} {how}{'.' if killed else quoted}",
        f"{memory if killed else ''}The whole log is {log}; {RERUN[limits.keeps]}.",
        how=how,
        exit_code=code,
        last_lines=last_lines,
    )


def _nobody_came(out: Output) -> TrainingError:
    training = out.runtime.training
    wanted = f"{out.stage}: not all of the {hosts_of(training)} hosts"
    if training.rendezvous is None:
        return TrainingError(
            f"{wanted} of the Slurm allocation met on its first node within {launchers.MEETING_SECONDS} seconds.",
            "See that the nodes know each other by name and reach each other, or leave one out (--exclude). On fewer "
            "nodes the run goes on from the last checkpoint.",
        )
    return TrainingError(
        f"{wanted} came to {training.rendezvous} within {launchers.MEETING_SECONDS} seconds.",
        "Run `gristmill join` on each of the others; they must reach that address and see the same working folders. To "
        "go on with fewer hosts from the last checkpoint, set runtime.training.hosts (for one host hosts 1 and "
        "rendezvous null) and runtime.training.processes.",
    )


def _how(code: int, crash: str, log: str) -> str:
    """How a child ended, which wrote `log`. What other ranks say of one that was killed is not the reason."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    how = f"ended with exit code {code}"
    for rank, number in TORCHRUN_KILLED.findall(log):
        if int(number) != signal.SIGTERM:  # which torchrun itself sends to those that are left
            return f"{how} (rank {rank} was killed by {signal.Signals(int(number)).name})"
    if 256 - code in LAUNCHER_SIGNALS:
        how += f" (one of its ranks was killed by {signal.Signals(256 - code).name})"
    return f"{how}, {crash}" if crash else how


def _log_text(log: Path, begun: int) -> str:
    """What this child, which began at a byte of the log, wrote into it."""
    with log.open("rb") as file:
        file.seek(begun)
        return file.read().decode(errors="replace")


def _last_lines(log: Path, begun: int) -> list[str]:
    return _log_text(log, begun).splitlines()[-LAST_LINES:]
