"""Child processes for training, which never outlive the stage that started them.

Training runs in a fresh Python: the allocator and OpenMP read their settings only at its start, torch and DeepSpeed
keep global state, and a crash in native code must not take the flow down. The child lives in a session of its own, so
that a whole process group can be ended; the kernel kills it when its stage dies, by kill -9 too (PR_SET_PDEATHSIG).

The two sides talk in JSON lines on the child's standard output (`emit`), behind the host's name where another host
speaks; whatever else the child prints goes to a log.

    stage:  run_module("tasks.pretrain.train", spec, out, on_line=…)
    child:  if __name__ == "__main__": run_as_child(train)          # def train(spec: Path) -> None

Words with a meaning for this file: `error`, the child's last, with its message, remedy and facts; `crash`, any other
exception; and `beat`, in how many seconds it will beat again. A child that beats and then stays silent for longer
hangs, and is ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from storage import errors
from storage.errors import GristmillError, LostProcess, TrainingError
from storage.full_disk import disk_full
from tasks.children.launchers import joining_command, training_command

if TYPE_CHECKING:
    from tasks.children.spec import ChildSpec
    from tasks.stage.output import Output

PR_SET_PDEATHSIG = 1
GRACE_SECONDS = 5.0  # between TERM and KILL
LEAVE_SECONDS = 20.0  # between a child's error and its end; a rank may wait for others that will never come
POLL_SECONDS = 0.5
LAUNCHER_SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGTERM)  # as 256 − signal
MESSAGE = re.compile(rb"(?:[\w.-]+: )?(\{.*\})\s*")  # pdsh, which a hostfile asks for, begins each line with the host
LAST_LINES = 12  # of the log, quoted when a child fails
STAGE_PID = "GRISTMILL_STAGE_PID"


def run_child(
    command: list[str],
    *,
    out: Output,
    environment: Mapping[str, str],
    log: Path,
    on_line: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Run `command` to its end; `on_line` gets each JSON object that it prints. `environment` is the whole of it.

    Raises the GristmillError that the child reported (the first, where several ranks did), a LostProcess with the last
    lines of `log` when it ended otherwise than well or hangs, or a TrainingError when it outlived
    `out.runtime.timeout_minutes`. The first two have the `exit_code` and the `last_lines` among their facts. On any
    exception, Ctrl-C too, the child's whole process group is ended before the exception goes on.
    """
    limits = _Limits(out.stage, out.runtime.timeout_minutes)
    log.parent.mkdir(parents=True, exist_ok=True)
    begun = log.stat().st_size if log.exists() else 0
    reported: dict[str, Any] | None = None
    crash = ""
    with log.open("ab", buffering=0) as log_file:
        process = subprocess.Popen(
            # `main` below sets the death signal and then becomes the command: safer than code between fork and exec
            [sys.executable, "-m", "tasks.children.supervise", str(os.getpid()), *command],
            env={**environment, STAGE_PID: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log_file,
            start_new_session=True,
        )
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
                elif "beat" in message:
                    limits.beat(message["beat"])
                elif on_line is not None:
                    on_line(message)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(limits.left())
        except LostProcess as error:
            error.facts["last_lines"] = _last_lines(log, begun)
            raise
        finally:
            code = _end(process)
    if reported:
        raise _typed(reported, code, _last_lines(log, begun))
    if code != 0:
        raise _failed(out.stage, code, crash, log, _last_lines(log, begun))


def run_module(
    module: str, spec: ChildSpec, out: Output, *, on_line: Callable[[dict[str, Any]], None], ranks: bool = True
) -> dict[str, Any]:
    """Run `python -m module` on a spec, as many ranks as the runtime says unless `ranks` is off; what it measured.

    The spec and the child's log lie in the scratch folder. Raises as `run_child`.
    """
    path = out.scratch / "spec.json"
    path.write_text(spec.model_dump_json())
    command = training_command(module, path, out.runtime) if ranks else [sys.executable, "-m", module, str(path)]
    if ranks and out.runtime.rendezvous is not None:
        out.note(f"on each of the other hosts run: {joining_command(module, path)}")
    log = out.scratch / "child.log"
    environment = training_environment(out)
    if ranks and out.runtime.hostfile is not None:
        environment["DS_ENV_FILE"] = str(_passed_on(out))
    run_child(command, out=out, environment=environment, log=log, on_line=on_line)
    result: dict[str, Any] = json.loads(spec.result.read_text())
    return result


def training_environment(out: Output) -> dict[str, str]:
    """The environment of a training child: this process's own, with what must be set before Python starts.

    The allocator keeps the memory of freed tensors (35 % faster steps on a small model: a fresh page costs as much as
    the arithmetic on it); OpenMP threads that wait spin for a moment, then sleep (steps are a tenth to a sixth faster
    than when they sleep at once; those that spin for longer starve each other on a busy machine); no library calls out.
    """
    return {**os.environ, **_set_for_training(out)}


def _set_for_training(out: Output) -> dict[str, str]:
    threads = str(out.runtime.threads)
    keep = str(1 << 32)
    environment = {
        "MALLOC_TOP_PAD_": str(1 << 28),
        "MALLOC_TRIM_THRESHOLD_": keep,
        "MALLOC_MMAP_THRESHOLD_": keep,
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "1000",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "WANDB_MODE": "disabled",
        "PYTHONUNBUFFERED": "1",
    }
    if out.runtime.device == "cpu":
        environment["DS_ACCELERATOR"] = "cpu"
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return environment


def _passed_on(out: Output) -> Path:
    """What DeepSpeed's runner gives processes on other hosts, which else have none of it: what is set for training, a
    drill, and what the user has in files of their own (.deepspeed_env)."""
    own = [Path(folder, os.environ.get("DS_ENV_FILE", ".deepspeed_env")) for folder in (Path.home(), ".")]
    lines = [line for file in own if file.is_file() for line in file.read_text().splitlines() if line]
    passed = _set_for_training(out) | {name: os.environ[name] for name in ("GRISTMILL_DRILL",) if name in os.environ}
    path = out.scratch / "environment"
    path.write_text("".join(f"{line}\n" for line in (*lines, *(f"{name}={value}" for name, value in passed.items()))))
    return path


def run_as_child(function: Callable[[Path], None]) -> None:
    """The child's side: tie this process to its parent, run `function(spec)`, pass a GristmillError on as it is, and
    the first line of any other exception beside its traceback."""
    die_with_parent()
    sys.excepthook = _crash
    try:
        function(Path(sys.argv[-1]))
    except GristmillError as error:
        emit(error=type(error).__name__, message=error.message, remedy=error.remedy, facts=error.facts)
        sys.exit(1)


def _crash(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    """Any other exception; a full disk, however it is wrapped, as what it is: beginning again would not help."""
    full = disk_full(value)
    if full is not None:
        remedy = "Free space (`gristmill store gc`) and run again: it goes on from the last checkpoint."
        emit(error="StoreError", message=f"The disk is full: {full}".splitlines()[0], remedy=remedy)
    else:
        rank = f"rank {os.environ['RANK']}: " if "RANK" in os.environ else ""
        emit(crash=f"{rank}{kind.__name__}: {value}".splitlines()[0])
    sys.__excepthook__(kind, value, trace)


def emit(**fields: Any) -> None:
    """Send one JSON line to the stage. One write, so that lines of several ranks never mix."""
    sys.stdout.flush()
    os.write(1, json.dumps(fields).encode() + b"\n")


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent dies. A rank started by a launcher calls it for itself."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    orphaned = os.getppid() != parent if parent else os.getppid() == 1 and os.environ.get(STAGE_PID) != "1"
    if orphaned:  # the parent died before the kernel was told
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """`python -m tasks.children.supervise PARENT COMMAND…`: die with PARENT, and become COMMAND."""
    parent, *command = sys.argv[1:]
    die_with_parent(int(parent))
    os.execvp(command[0], command)


@dataclass
class _Limits:
    """How long a child may go on: in all, until its next beat, and after its error."""

    stage: str
    minutes: float | None
    begun: float = field(default_factory=time.monotonic)
    silence: float = math.inf  # seconds that it asked for with its last beat
    heard: float = 0.0
    leaves_by: float = math.inf

    def beat(self, seconds: float) -> None:
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
                "A training child ran longer than runtime.timeout_minutes and was ended.",
                "Raise it, or train fewer steps; a rerun goes on from the last checkpoint.",
            )
        if now > self.heard + self.silence:
            raise LostProcess(
                f"The training of {self.stage} gave no sign of life for {self.silence:,.0f} seconds and was ended.",
                "If its steps do take so long, raise runtime.hang_minutes; a rerun goes on from the last checkpoint.",
                how="hung",
            )
        return now > self.leaves_by


def _lines(process: subprocess.Popen[bytes], limits: _Limits) -> Iterator[bytes]:
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


def _end(process: subprocess.Popen[bytes]) -> int:
    """TERM, then KILL, to the whole group: ranks and helpers that outlived the child too. The child's exit code."""
    pipe: IO[bytes] | None = process.stdout
    if process.poll() is None:
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    _signal(process.pid, signal.SIGKILL)
    code = process.wait()
    if pipe is not None:
        pipe.close()
    return code


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _typed(message: Mapping[str, Any], code: int, last_lines: list[str]) -> GristmillError:
    kind = getattr(errors, str(message["error"]), TrainingError)
    facts = {**message.get("facts", {}), "exit_code": code, "last_lines": last_lines}
    return kind(message.get("message", ""), message.get("remedy", ""), **facts)


def _failed(stage: str, code: int, crash: str, log: Path, last_lines: list[str]) -> LostProcess:
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    if 256 - code in LAUNCHER_SIGNALS:
        how += f" (one of its ranks was killed by {signal.Signals(256 - code).name})"
    how += f", {crash}" if crash else ""
    return LostProcess(
        f"The training process of {stage} {how}:\n" + "\n".join(f"  {line}" for line in last_lines),
        f"\nThe whole log is {log}; a rerun goes on from the last checkpoint.",
        how=how,
        exit_code=code,
        last_lines=last_lines,
    )


def _last_lines(log: Path, begun: int) -> list[str]:
    """The end of what this child, which began at a byte of the log, wrote into it."""
    with log.open("rb") as file:
        file.seek(begun)
        return file.read().decode(errors="replace").splitlines()[-LAST_LINES:]


if __name__ == "__main__":
    main()
