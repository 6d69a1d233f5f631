"""Child processes for training, which never outlive the stage that started them.

Training runs in a fresh Python: the allocator and OpenMP read their settings only at its start, torch and DeepSpeed
keep global state, and a crash in native code must not take the flow down. The child lives in a session of its own, so
that a whole process group can be ended; the kernel kills it when its stage dies, by kill -9 too (PR_SET_PDEATHSIG).

The two sides talk in JSON lines on the child's standard output (`emit`); whatever else the child prints goes to a log.

    stage:  run_module("tasks.pretrain.train", spec, out, on_line=…)
    child:  if __name__ == "__main__": run_as_child(train)          # def train(spec: Path) -> None
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from storage import errors
from storage.errors import GristmillError, TrainingError
from tasks.launchers import joining_command, training_command

if TYPE_CHECKING:
    from tasks.child_spec import ChildSpec
    from tasks.output import Output

PR_SET_PDEATHSIG = 1
GRACE_SECONDS = 5.0  # between TERM and KILL
POLL_SECONDS = 0.5
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

    Raises the GristmillError that the child reported, or a TrainingError with the last lines of `log` when it ended
    otherwise than well or outlived `out.runtime.timeout_minutes`. On any exception, Ctrl-C too, the child's whole
    process group is ended before the exception goes on.
    """
    minutes = out.runtime.timeout_minutes
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    log.parent.mkdir(parents=True, exist_ok=True)
    reported: dict[str, Any] | None = None
    with log.open("ab", buffering=0) as log_file:
        process = subprocess.Popen(
            # `main` below sets the death signal and then becomes the command: safer than code between fork and exec
            [sys.executable, "-m", "tasks.launch", str(os.getpid()), *command],
            env={**environment, STAGE_PID: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log_file,
            start_new_session=True,
        )
        try:
            for line in _lines(process, deadline):
                message = _message(line)
                if message is None:
                    log_file.write(line)
                elif "error" in message:
                    reported = message
                elif on_line is not None:
                    on_line(message)
            code = process.wait()
        finally:
            _end(process)
    if code != 0:
        raise _typed(reported) if reported else _failed(out.stage, code, log)


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
    run_child(command, out=out, environment=training_environment(out), log=log, on_line=on_line)
    result: dict[str, Any] = json.loads(spec.result.read_text())
    return result


def training_environment(out: Output) -> dict[str, str]:
    """The environment of a training child: this process's own, with what must be set before Python starts.

    The allocator keeps the memory of freed tensors (35 % faster steps on a small model: a fresh page costs as much as
    the arithmetic on it); OpenMP threads sleep while they wait (spinning ones starve each other on a busy machine);
    no library calls out.
    """
    threads = str(out.runtime.threads)
    keep = str(1 << 32)
    environment = {
        **os.environ,
        "MALLOC_TOP_PAD_": str(1 << 28),
        "MALLOC_TRIM_THRESHOLD_": keep,
        "MALLOC_MMAP_THRESHOLD_": keep,
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "0",
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


def run_as_child(function: Callable[[Path], None]) -> None:
    """The child's side: tie this process to its parent, run `function(spec)`, pass a GristmillError on as it is."""
    die_with_parent()
    try:
        function(Path(sys.argv[-1]))
    except GristmillError as error:
        emit(error=type(error).__name__, message=error.message, remedy=error.remedy)
        sys.exit(1)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        remedy = "Free space (`gristmill store gc`) and run again: it goes on from the last checkpoint."
        emit(error="StoreError", message=f"The disk is full: {error}.", remedy=remedy)
        sys.exit(1)


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
    """`python -m tasks.launch PARENT COMMAND…`: die with PARENT, and become COMMAND."""
    parent, *command = sys.argv[1:]
    die_with_parent(int(parent))
    os.execvp(command[0], command)


def _lines(process: subprocess.Popen[bytes], deadline: float | None) -> Iterator[bytes]:
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
            if deadline is not None and time.monotonic() > deadline:
                raise TrainingError(
                    "A training child ran longer than runtime.timeout_minutes and was ended.",
                    "Raise it, or train fewer steps; a rerun goes on from the last checkpoint.",
                )
    if rest:
        yield rest + b"\n"


def _message(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b"{"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _end(process: subprocess.Popen[bytes]) -> None:
    """TERM, then KILL, to the whole group: ranks and helpers that outlived the child too."""
    pipe: IO[bytes] | None = process.stdout
    if process.poll() is None:
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    _signal(process.pid, signal.SIGKILL)
    process.wait()
    if pipe is not None:
        pipe.close()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _typed(message: Mapping[str, Any]) -> GristmillError:
    kind = getattr(errors, str(message["error"]), TrainingError)
    return kind(message.get("message", ""), message.get("remedy", ""))


def _failed(stage: str, code: int, log: Path) -> TrainingError:
    lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return TrainingError(
        f"The training process of {stage} {how}:\n" + "\n".join(f"  {line}" for line in lines),
        f"\nThe whole log is {log}; a rerun goes on from the last checkpoint.",
    )


if __name__ == "__main__":
    main()
