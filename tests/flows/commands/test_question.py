"""The question before an expensive stage, at a real terminal: its text, and the effect of each answer."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.commands.runs.listing import remark
from storage.runs import history
from storage.runs.record import RunRecord
from storage.store import Store

QUESTION, AGAIN = b"Make it? [y/N] ", b"Answer y for yes or n for no."
COMMAND = [sys.executable, "-m", "flows.cli", "run", "smoke", "--to=download", "--set=runtime.approve=[download]"]
SOURCE = "--set=download.sources=[{kind: files, name: mine, paths: [mine.txt]}]"
PERSON = 0.5  # seconds to an answer: Ctrl-C between the prompt and the wait for a line would be seen after the line
LINE = "The fox sleeps in the forest.\n"


def at_terminal(
    folder: Path, *turns: tuple[bytes, bytes], meanwhile: Callable[[], None] = lambda: None
) -> tuple[int, str]:
    """The exit status, and what is printed. Of each turn, the second is typed once the first has been printed and
    `meanwhile` has been called."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "COLUMNS": "200"}
    environment.pop("PREFECT_API_URL", None)
    command = [*COMMAND, SOURCE, "--set=download.benchmarks=[arc_easy]"]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=_in_front
    )
    os.close(theirs)
    said, read, waited = b"", 0, list(turns)
    deadline = time.monotonic() + 180
    try:
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            assert time.monotonic() < deadline, said
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    said += os.read(ours, 4096)
                except OSError:  # the other side is closed
                    break
            if waited and (found := said.find(waited[0][0], read)) >= 0:
                read = found + len(waited[0][0])
                time.sleep(PERSON)
                meanwhile()
                os.write(ours, waited.pop(0)[1])
        return process.wait(timeout=60), said.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _in_front() -> None:
    """The terminal's keys are for this process: its Ctrl-C too."""
    import fcntl
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which is ignored by what a script starts in its background
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def only_record(folder: Path) -> RunRecord:
    (found,) = history.records(Store(str(folder / "store")))
    assert isinstance(found, RunRecord)
    return found


@pytest.mark.soak_but("n\\n-1-download was not approved-failed")
@pytest.mark.parametrize(
    ("answer", "code", "says", "state"),
    [
        (b"n\n", 1, "download was not approved", "failed"),
        pytest.param(b"\x04", 1, "download was not approved", "failed", marks=pytest.mark.soak),
        (b"\x03", 130, "Interrupted. The same command resumes", "stopped"),
    ],
)
def test_a_no_fails_the_run_and_ctrl_c_stops_it(
    answer: bytes, code: int, says: str, state: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text(LINE)
    remarks = []
    returned, said = at_terminal(
        tmp_path,
        (QUESTION, b"maybe\n"),
        (AGAIN, b""),
        (QUESTION, answer),
        meanwhile=lambda: remarks.append(remark(only_record(tmp_path))),
    )
    assert returned == code
    assert set(remarks) == {"waits for a person's approval"}
    assert says in said
    assert "Traceback" not in said
    assert (only_record(tmp_path).state, only_record(tmp_path).waits_for) == (state, "")
    assert not list(Store(str(tmp_path / "store")).locations("download"))


@pytest.mark.soak
def test_the_question_tells_what_the_plan_expects_and_not_what_another_size_took(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text(LINE)
    code, said = at_terminal(tmp_path, (QUESTION, b"y\n"))
    assert code == 0
    assert "download must be made. Make it?" in said, "nothing is known yet"
    (tmp_path / "mine.txt").write_text(LINE * 1000)
    _, said = at_terminal(tmp_path, (QUESTION, b"n\n"))
    assert "(scaled ×1e+03 by the bytes of its sources from download/" in said
