"""The server's log: whole lines with the request's id, nothing that users wrote, and no wait for a stuck reader."""

from __future__ import annotations

import io
import json
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from storage.errors import ConfigError
from tasks.serve.watch import Logs, WatchConfig
from tasks.serve.watch.config import LogsConfig
from tasks.serve.watch.logs import LOGGERS, REQUEST
from tests.tasks.serve.watch.report import ask, watching

SECRET = "my card is 4111 1111 1111 1111"
log = logging.getLogger("gristmill.test")


@contextmanager
def logging_to(stream: Any, **config: Any) -> Iterator[None]:
    """Log to a stream within the block, and leave the loggers as they were."""
    before = [(logger, logger.handlers, logger.propagate, logger.level) for logger in map(logging.getLogger, LOGGERS)]
    logs = Logs(LogsConfig.model_validate(config), stream)
    try:
        yield
    finally:
        logs.stop()
        for logger, handlers, propagate, level in before:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
        logging.getLogger("uvicorn.access").disabled = False


@contextmanager
def serving(app: Starlette) -> Iterator[str]:
    """uvicorn with an app, as the server starts it."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, access_log=False, log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


async def broken(request: Request) -> Response:
    REQUEST.set("r42")
    text = (await request.body()).decode()
    log.warning("it will break")
    float(text)
    return PlainTextResponse("")


def test_an_error_in_a_request_is_logged_with_its_id_and_place_but_without_its_content() -> None:
    said = io.StringIO()
    with (
        logging_to(said, format="json"),
        serving(Starlette(routes=[Route("/broken", broken, methods=["POST"])])) as url,
    ):
        headers = {"authorization": "Bearer sk-secret-key"}
        answer = httpx.post(f"{url}/broken?q=secret-query", content=SECRET, headers=headers)
    assert answer.status_code == 500
    lines = [json.loads(line) for line in said.getvalue().splitlines()]
    for secret in (SECRET, "4111", "sk-secret-key", "secret-query"):
        assert secret not in said.getvalue()
    (warned,) = [line for line in lines if line["message"] == "it will break"]
    assert (warned["request"], warned["level"], warned["logger"]) == ("r42", "warning", "gristmill.test")
    (failed,) = [line for line in lines if "error" in line]
    assert failed["error"] == "ValueError"
    assert "broken" in failed["at"]
    assert not [line for line in lines if "POST" in line["message"]], "uvicorn's access log is off"


def test_each_request_is_a_line_without_its_content(tmp_path: Path) -> None:
    said = io.StringIO()
    with logging_to(said), watching(tmp_path, audit={"enabled": False}) as watch:
        ask(watch, 7, request_text=SECRET)
        ask(watch, 8, status=503, finish=None, reason="engine_failed")
    first, second = said.getvalue().splitlines()
    assert " INFO    r7 request route=/v1/chat/completions status=200 finish=stop prompt_tokens=7" in first
    assert " ERROR   r8 request route=/v1/chat/completions status=503 reason=engine_failed" in second
    assert "4111" not in said.getvalue()


def test_a_line_stays_one_line_and_cannot_steer_a_terminal() -> None:
    said = io.StringIO()
    with logging_to(said):
        log.info("two\nlines %s", "\x1b[2Jcleared \ud83d", extra={"facts": {"model": "a\x1b[31m"}})
    assert said.getvalue().count("\n") == 1
    assert "\x1b" not in said.getvalue()


def test_our_own_errors_keep_their_message_and_the_level_counts() -> None:
    said = io.StringIO()
    with logging_to(said, level="error"):
        log.info("not shown")
        try:
            raise ConfigError("The port is taken.", "Choose another.")
        except ConfigError:
            log.exception("it did not start")
    assert "said=The port is taken." in said.getvalue()
    assert "not shown" not in said.getvalue()


def test_a_reader_that_is_stuck_stops_nothing() -> None:
    reading, writing = os.pipe()
    with open(writing, "w") as stream:
        with logging_to(stream):
            for number in range(20_000):
                log.info("line %d of many", number)
        read = b""
        while select.select([reading], [], [], 1.0)[0]:
            read += os.read(reading, 1_000_000)
    os.close(reading)
    assert 10_000 <= read.count(b"\n") < 20_000
    assert b"line 0 of many" in read


def test_an_unknown_key_of_the_section_is_refused() -> None:
    with pytest.raises(ValueError, match="colour"):
        WatchConfig.model_validate({"logs": {"colour": True}})
