"""Clients who stream answers all the while."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Self

from tests.tasks.serve.hostile.raw import CHAT, posted, statuses
from tests.tasks.serve.real_server import Server

ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Where does the fox live?"}], "temperature": 0.8}
END = b"data: [DONE]\n\n"


def is_whole(answer: bytes) -> bool:
    """Whether a stream has all that belongs to it."""
    finished = re.search(rb'"finish_reason":"(?:stop|length)"', answer)
    return statuses(answer) == [200] and finished is not None and END in answer and answer.endswith(b"0\r\n\r\n")


@dataclass
class Load:
    """`clients` of a server. Each asks its next question once it has the answer."""

    server: Server
    clients: int = 6
    tokens: int = 24
    answers: list[bytes] = field(default_factory=list)

    @property
    def wrong(self) -> list[bytes]:
        """The answers that lack something."""
        return [answer for answer in self.answers if not is_whole(answer)]

    def _client(self) -> None:
        while not self._end.is_set():
            try:
                self.answers.append(posted(self.server, CHAT, {**ASKED, "max_tokens": self.tokens, "stream": True}))
            except ConnectionRefusedError:  # it doesn't listen any more
                return
            time.sleep(0.01)

    def __enter__(self) -> Self:
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._client, daemon=True) for _ in range(self.clients)]
        for thread in self._threads:
            thread.start()
        time.sleep(0.3)
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(60)
