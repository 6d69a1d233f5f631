"""The chat page in a real browser, as a person uses it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import browser
from tests.tasks.serve.pages.stand_in import StandIn, serving

KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, ""), " ": (32, " ")}
SHIFT = 8
ANSWER = "[...document.querySelectorAll('.answer .text')].at(-1)?.innerText ?? ''"


class Driven:
    """A page with its server. The browser's storage is empty at the start. `blank` is a page that keeps nothing."""

    def __init__(self, page: browser.Page, server: StandIn, address: str, blank: str = "/blank") -> None:
        self.page, self.server, self.address, self.blank = page, server, address, blank

    def fresh(self, width: int = 1280, height: int = 800, scheme: str = "light", path: str = "/") -> None:
        """Begin again, in a window of this size."""
        self.server.key = None
        self.server.asked.clear()
        self.open(self.blank)
        self.run("localStorage.clear(), sessionStorage.clear()")
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.page.send("Emulation.setDeviceMetricsOverride", **metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.page.send("Emulation.setEmulatedMedia", features=features)
        self.page.said.clear()
        self.open(path)

    def open(self, path: str = "/") -> None:
        """Load a page, until its models are known."""
        answer = self.page.send("Page.navigate", url=self.address + path)
        assert "errorText" not in answer, answer
        self.until(lambda: self.run("location.pathname") == path and self.run("document.readyState") == "complete")
        if path == "/" and self.server.key is None:
            self.until(lambda: self.run("document.getElementById('model').value") != "")

    def run(self, script: str) -> Any:
        """The value of an expression."""
        return self.page.run(script)

    def until(self, condition: Callable[[], Any], seconds: float = 20) -> Any:
        """Wait for a condition, and return its value."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, "\n".join([self.page.text, *self.page.said])
            self.page.rest(0.05)
        return value

    def press(self, key: str, modifiers: int = 0) -> None:
        """Press a key and let it go."""
        code, text = KEYS[key]
        event = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.page.send("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **event)
        self.page.send("Input.dispatchKeyEvent", type="keyUp", **event)

    def type(self, text: str) -> None:
        """Type where the focus is."""
        self.page.send("Input.insertText", text=text)

    def begin(self, words: str) -> None:
        """Ask a question, and don't wait for its answer."""
        self.run("document.getElementById('question').focus()")
        self.type(words)
        self.press("Enter")

    def ask(self, words: str) -> str:
        """Ask a question, and return the whole answer as it is read."""
        self.begin(words)
        return self.ended()

    def ended(self) -> str:
        """Wait for the end of the answer, and return it."""
        self.until(lambda: self.run("!document.getElementById('send').hidden"))
        return str(self.run(ANSWER))

    def click(self, name: str, within: str = "body") -> None:
        """Click the last shown button with this name."""
        find = (
            f"[...document.querySelectorAll({json.dumps(within + ' button')})]"
            f".filter(each => (each.ariaLabel ?? each.textContent) === {json.dumps(name)})"
            ".filter(each => each.checkVisibility()).at(-1)"
        )
        self.until(lambda: self.run(f"(found => found && (found.click(), true))({find})"))

    def connected(self, is_so: bool) -> None:
        """Cut the browser off from the network, or join it again."""
        rate = -1 if is_so else 0
        settings = {"offline": not is_so, "latency": 0, "downloadThroughput": rate, "uploadThroughput": rate}
        self.page.send("Network.emulateNetworkConditions", **settings)

    @property
    def note(self) -> str:
        """The last notice below an answer."""
        return str(self.run("[...document.querySelectorAll('.note')].at(-1)?.textContent ?? ''"))

    @property
    def focus(self) -> str:
        """Where the focus is: an id, or the name of a button."""
        element = "document.activeElement"
        return str(self.run(f"{element}.id || {element}.ariaLabel || {element}.textContent"))

    def is_clean(self) -> None:
        """Nothing was said on the console, and nobody else was asked."""
        self.page.rest(0.1)
        assert not self.page.said, self.page.said
        assert self.page.hosts == {self.address.removeprefix("http://")}


@contextmanager
def driven(folder: Path) -> Iterator[Driven]:
    """A browser beside a server. Skips the test without Chromium."""
    server = StandIn(folder / "votes")
    with browser.page(folder) as page, serving(server.app) as address:
        yield Driven(page, server, address)
