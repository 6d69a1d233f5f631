"""The server's log on stderr: lines for people or JSON, each with its request's id, without anything that users wrote.

A traceback is reduced to the type of the error and the lines of code, as messages of libraries quote what they read. A
thread writes, so a reader of stderr that is slow or stuck can't stop the event loop: lines beyond 10,000 are left out.

uvicorn's own access log would hold the whole address with its query: start it with `access_log=False, log_config=None`.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import traceback
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from logging.handlers import QueueHandler
from typing import Any, TextIO

import orjson

from storage.errors import GristmillError, harmless
from tasks.serve.watch.config import LogsConfig

REQUEST: ContextVar[str] = ContextVar("request", default="")  # the id of the request that this code works for
MOST_LINES = 10_000
STOP_SECONDS = 2.0
LOGGERS = ("gristmill", "uvicorn.error", "opentelemetry")


class Logs:
    """Logs to a stream until it is stopped."""

    def __init__(self, config: LogsConfig, stream: TextIO = sys.stderr) -> None:
        self._handler = logging.StreamHandler(stream)
        self._handler.setFormatter(Formatter(as_json=config.format == "json"))
        self._waiting = queue.Queue[logging.LogRecord | None](MOST_LINES)
        for name in LOGGERS:
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = [_Queued(self._waiting)], False
            logger.setLevel(config.level.upper())
        logging.getLogger("uvicorn.access").disabled = True
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, for at most some seconds: a reader may be stuck."""
        with suppress(queue.Full):
            self._waiting.put(None, timeout=STOP_SECONDS)
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while record := self._waiting.get():
            self._handler.handle(record)


class Formatter(logging.Formatter):
    """A line of text or JSON. `extra={"facts": {…}}` of a log call adds facts."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        facts = {**getattr(record, "facts", {}), **getattr(record, "fault", {})}
        request = getattr(record, "request", "")
        message = harmless(record.getMessage()).replace("\n", " ")
        if self._as_json:
            head = {
                "time": stamp(record.created),
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": message,
            }
            return orjson.dumps({**head, **({"request": request} if request else {}), **facts}, default=str).decode()
        words = [f"{name}={harmless(str(value))}" for name, value in facts.items() if value not in (None, "")]
        return " ".join(
            [stamp(record.created), f"{record.levelname:7}", *([request] if request else []), message, *words]
        )


class _Queued(QueueHandler):
    """Hands lines to the thread that writes them."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Note what only this thread knows: the request and the error."""
        record.request = REQUEST.get()
        if record.exc_info and record.exc_info[1]:
            record.fault = fault(record.exc_info[1])
        record.msg, record.args = record.getMessage().encode("utf-8", "replace").decode(), None
        record.exc_info = record.exc_text = record.stack_info = None
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Leave the line out if the thread is far behind."""
        with suppress(queue.Full):
            self.queue.put_nowait(record)


def stamp(seconds: float) -> str:
    """A time since 1970 as all our logs write it: `2026-11-26T20:42:04.123Z`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def fault(error: BaseException) -> dict[str, Any]:
    """An error without its message, unless Gristmill wrote that, and without the values of variables."""
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    said = {"said": error.message} if isinstance(error, GristmillError) else {}
    return {
        "error": type(error).__name__,
        **said,
        "at": " < ".join(
            f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in reversed(frames)
        ),
    }
