"""A user's own environment: a class in a process of its own, which is ended when a call takes too long.

One process has the objects of all conversations of a batch. When it ends, these conversations are over: what they had
said is gone with it. The far side is own_process.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.posttrain.rewards.environments.config import OwnEnvironmentConfig
from tasks.posttrain.rewards.environments.protocol import Opening, Step
from tasks.posttrain.rewards.function import GRACE, UserProcess
from tasks.stage.user_function import fingerprints


class OwnEnvironments:
    """Conversations with objects of the class. `digests` are those of its source, as in the artifact's key."""

    def __init__(self, config: OwnEnvironmentConfig, digests: Mapping[str, str] | None = None) -> None:
        self.config = config
        own = fingerprints(config)
        self.digests = own if digests is None else {name: digests[name] for name in own}
        self._process: UserProcess | None = None

    def reset(self, rows: Sequence[Mapping[str, Any]]) -> list[Opening]:
        """An object for each row, or why its `reset` failed."""
        self._start()
        replies = self._ask(["reset", [dict(row) for row in rows]])
        if isinstance(replies, str):
            return [Opening(row["prompt"], failed=replies) for row in rows]
        return [
            Opening(reply.get("messages", row["prompt"]), reply.get("tools", []), reply.get("failed", ""))
            for reply, row in zip(replies, rows, strict=True)
        ]

    def step(self, answers: Mapping[int, str]) -> dict[int, Step | str]:
        """What each object says to its answer."""
        replies = self._ask(["step", [[place, answer] for place, answer in answers.items()]])
        if isinstance(replies, str):
            return dict.fromkeys(answers, replies)
        return {
            place: reply["failed"] if "failed" in reply else Step(reply["observation"], reply["reward"], reply["done"])
            for place, reply in zip(answers, replies, strict=True)
        }

    def check(self) -> None:
        """Load the class, and end its process. Raises as loading it does."""
        self._start()
        self.close()

    def close(self) -> None:
        """End the process. The next reset starts another."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def _start(self) -> None:
        if self._process is None:
            module = "tasks.posttrain.rewards.environments.own_process"
            self._process = UserProcess(self.config, self.digests, module, "environment")

    def _ask(self, message: Any) -> Any:
        """The replies, or why there are none."""
        if self._process is None:
            return "its process had ended"
        try:
            replies = self._process.ask(message, self.config.seconds)
        except TimeoutError:
            self.close()
            return f"it took longer than {self.config.seconds:g} s"
        if replies is None:
            why = self._process.end(GRACE)
            self._process = None
            return f"its process ended with {why}"
        return replies
