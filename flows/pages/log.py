"""A run's log in Prefect: an error is told once.

Prefect logs an error with its traceback for each task that it goes through and for the flow, and once more with the
state of each. An error that a person can fix is reported by the end of the flow, in two sentences
(flows/deployed/run_lifecycle.py). A traceback of it adds nothing, nor does one of a signal, which the state names. A
defect keeps its own, once.
"""

from __future__ import annotations

import logging
import os
import re
import select

from storage.errors import GristmillError
from tasks.stage.pages import interrupts

TOLD = "_told_in_log"  # on an error: builtin ones take attributes, but no weak references
ENDED = re.compile("Finished in state (?:Failed|Crashed|Cancelled|TimedOut)")
SUSPENDED = "Finished in state Running"  # of a task, whose run has ended to wait for a person
# Of a run that ends before its flow begins: by parameters that the flow has not, which schedules can have
UNKNOWN = re.compile(r"Function expects parameters \[(.*)\] but was provided with parameters \[(.*)\]")
STREAMS = (1, 2)  # standard output and error
LOGGERS = ("prefect.task_runs", "prefect.flow_runs", "prefect.engine")


class Once(logging.Filter):
    """Lets the first record of a defect through; see the module's docstring."""

    def filter(self, record: logging.LogRecord) -> bool:
        """See the base."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            if isinstance(error, (GristmillError, *interrupts())) or vars(error).get(TOLD):
                return False
            if unknown := UNKNOWN.fullmatch(str(error)):
                there, given = (re.findall("'([^']*)'", names) for names in unknown.groups())
                wrong = ", ".join(name for name in given if name not in there)
                record.msg = f"There is no parameter {wrong}. The parameters are {', '.join(there)}."
                record.args, record.exc_info = (), None
                return True
            setattr(error, TOLD, True)
        elif str(record.msg).startswith(SUSPENDED):
            return False
        elif record.levelno == logging.ERROR and (ended := ENDED.match(str(record.msg))):
            record.levelno, record.levelname = logging.INFO, "INFO"
            record.msg, record.args = ended[0], ()
        return True


_ONCE = Once()


def tell_once() -> None:
    """From now on, in this process."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_ONCE)


def drop_closed_streams() -> None:
    """Let output and errors go nowhere once nobody reads their pipe, as after a kill -9 of a worker of Prefect: rich,
    which writes Prefect's log, ends a process at its next line otherwise, though its work goes on well."""
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
