"""A run's log in Prefect, with each error once.

Prefect logs an error with its traceback for each task that it passes through and for the flow, and again with the state
of each. The end of the flow reports an error that a person can fix, in two sentences (flows/deployed/run_lifecycle.py).
Its traceback adds nothing, nor does that of a signal, which the state names. A defect's traceback is logged once.
"""

from __future__ import annotations

import logging
import os
import re
import select

from storage.errors import GristmillError
from tasks.stage.display.pages import interrupts

LOGGED = "_told_in_log"  # an attribute of a logged error: builtin errors take attributes, but no weak references
ENDED = re.compile("Finished in state (?:Failed|Crashed|Cancelled|TimedOut)")
SUSPENDED = "Finished in state Running"  # of a task whose run ended to wait for a person
# Of a run that fails before its flow begins: a schedule can have parameters that the flow doesn't know
UNKNOWN = re.compile(r"Function expects parameters \[(.*)\] but was provided with parameters \[(.*)\]")
STREAMS = (1, 2)  # standard output and error
LOGGERS = ("prefect.task_runs", "prefect.flow_runs", "prefect.engine")


class Once(logging.Filter):
    """Passes the first record of each defect: see the module."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log a record."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            if isinstance(error, (GristmillError, *interrupts())) or vars(error).get(LOGGED):
                return False
            if unknown := UNKNOWN.fullmatch(str(error)):
                known, passed = (re.findall("'([^']*)'", names) for names in unknown.groups())
                wrong = ", ".join(name for name in passed if name not in known)
                record.msg = f"There is no parameter {wrong}. The parameters are {', '.join(known)}."
                record.args, record.exc_info = (), None
                return True
            setattr(error, LOGGED, True)
        elif str(record.msg).startswith(SUSPENDED):
            return False
        elif record.levelno == logging.ERROR and (ended := ENDED.match(str(record.msg))):
            record.levelno, record.levelname = logging.INFO, "INFO"
            record.msg, record.args = ended[0], ()
        return True


_ONCE = Once()


def log_errors_once() -> None:
    """Filter Prefect's log from now on, in this process."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_ONCE)


def drop_closed_streams() -> None:
    """Discard output and errors if nobody reads their pipe, as after a kill -9 of Prefect's worker. Otherwise rich,
    which writes Prefect's log, ends the process at its next line, whatever its work."""
    for stream in STREAMS:
        poll = select.poll()
        try:
            poll.register(stream, 0)
            closed = any(event & select.POLLERR for _, event in poll.poll(0))
        except OSError:
            continue
        if closed:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream)
            os.close(nowhere)
