"""A real browser without a window, spoken to by Chrome's DevTools protocol.

Tests that need one are skipped where there is none on the path (Debian's package is `chromium`). Every name but those
of this machine leads nowhere, so that a page reaches nothing else, and what it tries is seen.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.sync.client import connect
from websockets.sync.connection import Connection

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 90.0


class Page:
    """A tab: whom it has asked, and what its console says."""

    def __init__(self, connection: Connection, session: str) -> None:
        self._connection, self._session, self._numbers = connection, session, itertools.count(1)
        self._requests: dict[str, str] = {}
        self.said: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a command; events until then are noted."""
        number = next(self._numbers)
        sent = {"id": number, "method": method, "params": parameters, "sessionId": self._session}
        self._connection.send(json.dumps(sent))
        while True:
            message = self._received(SECONDS)
            if message.get("id") == number and message.get("sessionId") == self._session:
                assert "error" not in message, message
                answer: dict[str, Any] = message["result"]
                return answer

    def _received(self, seconds: float) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._connection.recv(timeout=seconds))
        parameters = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self._requests[parameters["requestId"]] = parameters["request"]["url"]
            case "Network.webSocketCreated":
                self._requests[parameters["requestId"]] = parameters["url"]
            case "Network.loadingFailed" if parameters.get("blockedReason") == "csp":
                self._requests.pop(parameters["requestId"], None)
            case "Log.entryAdded":
                self.said.append(parameters["entry"]["text"])
            case "Runtime.consoleAPICalled":
                self.said.append(" ".join(str(each.get("value", "")) for each in parameters["args"]))
        return message

    @property
    def hosts(self) -> set[str]:
        """The hosts and ports that it has asked: what a page's own policy forbids is not asked."""
        return {host for url in self._requests.values() if (host := urlsplit(url).netloc)}

    def open(self, url: str) -> None:
        """Go to an address."""
        self.send("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression, a promise's when it is kept."""
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    @property
    def text(self) -> str:
        """What a person reads."""
        return str(self.run("document.body ? document.body.innerText : ''"))

    def shows(self, text: str) -> None:
        """Wait until it shows this."""
        deadline = time.monotonic() + SECONDS
        while text not in self.text:
            assert time.monotonic() < deadline, "\n".join([f"no `{text}` in:", self.text, *self.said])
            self.rest(0.2)

    def rest(self, seconds: float) -> None:
        """Let it work, and note what it does."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                self._received(left)
            except TimeoutError:
                return

    def picture(self, path: Path) -> None:
        """A screenshot, for people."""
        path.write_bytes(b64decode(self.send("Page.captureScreenshot")["data"]))


@contextmanager
def page(folder: Path, *rules: str) -> Iterator[Page]:
    """A page of a new browser, whose profile lies in `folder`. `rules` map names, such as `MAP evil.example 127.0.0.1`.
    Skips the test where there is no browser."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("needs Chromium on the path")
    mapped = ", ".join([*rules, "MAP * ~NOTFOUND", "EXCLUDE 127.0.0.1", "EXCLUDE localhost"])
    command = [
        found,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--window-size=1400,1000",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder / 'browser'}",
        f"--host-resolver-rules={mapped}",
        "about:blank",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        with connect(_address(folder / "browser" / "DevToolsActivePort"), max_size=None) as connection:
            yield Page(connection, _tab(connection))
    finally:
        process.kill()
        process.wait()


def _address(told: Path) -> str:
    deadline = time.monotonic() + SECONDS
    while True:
        lines = told.read_text().splitlines() if told.exists() else []
        if len(lines) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        assert time.monotonic() < deadline, "the browser does not start"
        time.sleep(0.1)


def _tab(connection: Connection) -> str:
    def asked(method: str, **parameters: Any) -> dict[str, Any]:
        connection.send(json.dumps({"id": 0, "method": method, "params": parameters}))
        while "result" not in (message := json.loads(connection.recv(timeout=SECONDS))):
            assert "error" not in message, message
        answer: dict[str, Any] = message["result"]
        return answer

    target = asked("Target.createTarget", url="about:blank")["targetId"]
    return str(asked("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
