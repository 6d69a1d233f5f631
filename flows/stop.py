"""Ends a command early on a signal. All take the path of Ctrl-C.

A KeyboardInterrupt in the main thread unwinds the run: children end, finished shards and checkpoints stay.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

AGAIN = "Run it again: finished stages come from the store, and the rest resumes."
SIGNALS = (signal.SIGTERM, signal.SIGHUP)  # by Slurm, Docker and systemd; by a terminal that is closed


class Stop:
    """The signal that ends the command early, or None for Ctrl-C. The first counts."""

    def __init__(self) -> None:
        self.reason: signal.Signals | None = None
        self._stopping = False

    @property
    def exit_code(self) -> int:
        """The exit status after a signal, as in a shell: 130 for Ctrl-C."""
        return 128 + (self.reason or signal.SIGINT)

    def on_signal(self, number: int, frame: object) -> None:
        """Raise KeyboardInterrupt for the first signal. A second must not disturb the ending."""
        if self._stopping:
            return
        self._stopping = True
        self.reason = self.reason or signal.Signals(number)
        raise KeyboardInterrupt(signal.Signals(number).name)

    def lost(self, dropped: sys.UnraisableHookArgs) -> bool:
        """Whether Python dropped the interrupt of a signal, as in a destructor. Then the signal is sent again."""
        error = dropped.exc_value
        usual = signal.SIGINT if isinstance(error, KeyboardInterrupt) else None
        number = getattr(error, "signal", usual)  # of Prefect's TerminationSignal
        if number is None:
            return False
        self._stopping = False
        threading.Timer(0.1, os.kill, (os.getpid(), self.reason or number)).start()
        return True


def in_main_thread() -> bool:
    """Whether this thread is the one that may change how signals are handled."""
    return threading.current_thread() is threading.main_thread()


def end_undisturbed() -> None:
    """Ignore signals from now on: the command has printed everything, and its last steps are short. Otherwise a second
    Ctrl-C would end the process by the signal itself, with a traceback. Only the main thread can do this."""
    if not in_main_thread():
        return
    for number in (signal.SIGINT, *SIGNALS):
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Within the block SIGTERM and SIGHUP interrupt as Ctrl-C does, and no interrupt gets lost. SIGHUP stays ignored
    under nohup. In a thread other than the main one signals stay as they are."""
    if not in_main_thread():
        yield Stop()
        return
    stop, report = Stop(), sys.unraisablehook
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *SIGNALS)}
    for number in SIGNALS:
        handler = before[number]
        if not (number == signal.SIGHUP and handler == signal.SIG_IGN):
            signal.signal(number, stop.on_signal)
    sys.unraisablehook = lambda dropped: None if stop.lost(dropped) else report(dropped)
    try:
        yield stop
    finally:
        sys.unraisablehook = report
        for number, handler in before.items():
            signal.signal(number, handler)


def waits_for(error: BaseException | None) -> str:
    """The sentence that says what a suspended run waits for, or empty if the run ended otherwise."""
    if error is None or "prefect" not in sys.modules:
        return ""
    from prefect.exceptions import Pause

    return str(error.state.message) if isinstance(error, Pause) and error.state is not None else ""
