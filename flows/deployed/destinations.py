"""The ends of a promotion: a place that gets a copy, or a running server that answers from the release."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from storage.artifact import Artifact
from storage.errors import ConfigError, DamagedArtifact, ServerError
from tasks.export.push.address import HUB, SERVE, address
from tasks.export.push.hub import repository
from tasks.export.push.outgoing import Outgoing
from tasks.export.push.send import place, send


class Destination(Protocol):
    """The end of a promotion."""

    @property
    def name(self) -> str:
        """Its name, as `goes out to` precedes it."""

    def check(self, outgoing: Outgoing) -> None:
        """Fail before a person is asked. Raises GristmillError for an end that can't take the release."""

    def take(self, artifact: Artifact, outgoing: Outgoing, say: Callable[[str], None]) -> None:
        """Hand the release over, and say its steps. Raises GristmillError."""


@dataclass(frozen=True)
class Copied:
    """A hub, a bucket, a server for files or a folder."""

    scheme: str
    name: str
    public: bool

    def check(self, outgoing: Outgoing) -> None:
        if self.scheme != HUB:
            place(outgoing, self.scheme, self.name)

    def take(self, artifact: Artifact, outgoing: Outgoing, say: Callable[[str], None]) -> None:
        send(outgoing, self.scheme, self.name, self.public)


@dataclass(frozen=True)
class Served:
    """A `gristmill serve` of this machine, by its state folder. Its settings name the store, from which it opens the
    very artifact that was approved, whatever the ref is by then."""

    state: Path
    model: str | None

    @property
    def name(self) -> str:
        return f"the server of {self.state}"

    def check(self, outgoing: Outgoing) -> None:
        from tasks.serve.control import SOCKET

        if not os.path.exists(self.state / SOCKET):  # as it isn't for another user
            raise ServerError(
                f"No server uses the state folder {self.state}, or it is another user's.",
                "Start it, correct the folder, or run the worker as the server's user.",
            )

    def take(self, artifact: Artifact, outgoing: Outgoing, say: Callable[[str], None]) -> None:
        from tasks.serve.control import command

        answer: dict[str, str] = {}
        for line in command(self.state, command="swap", release=artifact.location, model=self.model):
            if "step" in line:
                say(line["step"])
            answer = line.get("done", answer)
        if answer["digest"] != artifact.digest:
            raise DamagedArtifact(
                f"The server of {self.state} serves another release of this name: {answer['digest']}, not "
                f"{artifact.digest}.",
                "Set `store` in its settings to the store of this release, and run again.",
            )


def destination(to: str, public: bool) -> Destination:
    """The end that an address names. Raises ConfigError."""
    kind, _, served = to.partition(":")
    if kind.lower() != SERVE:
        scheme, url = address(to)
        if scheme == HUB:
            repository(url)
        return Copied(scheme, url, public)
    folder, _, model = served.partition("#")
    if not folder:
        raise ConfigError(f"{to} lacks the folder of a server.", "Write serve:FOLDER, the server's --state.")
    return Served(Path(folder).expanduser(), model or None)
