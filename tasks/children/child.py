"""The child's side: a training process reports to its stage, one JSON object a line on standard output.

    if __name__ == "__main__":
        run_as_child(train)          # def train(spec: Path) -> None

supervise.py acts on five fields:

    error      the error that the child ends with: its type, with message, remedy and facts
    crash      the first line of any other exception
    heartbeat  seconds within which the next line with this field comes
    hosts      the hosts that train, if several
    stoppable  from now on the child can be asked to stop (orderly_stop.py)
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from storage.credentials import guard, print_exception, redact
from storage.errors import GristmillError
from storage.files.disk import disk_fault
from tasks.children.die_with_parent import die_with_parent
from tasks.children.heartbeat import end_with_stage

_TAGS: dict[str, Any] = {}


def run_as_child(function: Callable[[Path], None]) -> None:
    """Tie this process to its parent and its stage, and run `function(spec)`. Reports a GristmillError as it is, and
    the first line of any other exception, whose traceback goes to the log."""
    die_with_parent()
    end_with_stage()
    guard()
    sys.excepthook = _crash
    try:
        function(Path(sys.argv[-1]))
    except GristmillError as error:
        emit(error=type(error).__name__, message=error.message, remedy=error.remedy, facts=error.facts)
        sys.exit(1)


def _crash(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    """Report any other exception. A disk fault, however wrapped, gets its own type: a restart would not help."""
    fault = disk_fault(value)
    if fault is not None:
        emit(error=type(fault).__name__, message=fault.message, remedy=fault.remedy)
    else:
        rank = f"rank {os.environ['RANK']}: " if "RANK" in os.environ else ""
        emit(crash=redact(f"{rank}{kind.__name__}: {value}").splitlines()[0])
    print_exception(kind, value, trace)


def emit(**fields: Any) -> None:
    """Send one JSON line to the stage, in one write, so that lines of several ranks never mix."""
    sys.stdout.flush()
    os.write(1, json.dumps({**_TAGS, **fields}).encode() + b"\n")


def tag(**fields: Any) -> None:
    """Add these fields to every line from now on."""
    _TAGS.update(fields)
