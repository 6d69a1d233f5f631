"""The process of a user's environment: `python -m tasks.posttrain.rewards.environments.own_process DESCRIPTOR`.

It loads the class, then makes an object for each conversation and passes answers on, until its socket closes. No torch.
"""

from __future__ import annotations

import inspect
import json
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

from storage.errors import GristmillError, SourceError
from tasks.posttrain.rewards.config import LARGEST
from tasks.posttrain.rewards.environments.config import OwnEnvironmentConfig
from tasks.sandbox.inside.settings import receive, send
from tasks.stage.user_function import Caught, load

Reply = dict[str, Any]


def serve(channel: socket.socket) -> None:
    """Answer what comes until the other end closes: first a config with digests, then resets and steps."""
    settings, digests = receive(channel)
    try:
        make = loaded(OwnEnvironmentConfig.model_validate_json(settings), digests)
    except GristmillError as error:
        send(channel, {"error": type(error).__name__, "message": error.message, "remedy": error.remedy})
        return
    process = os.getpid()
    send(channel, {})
    begun: list[Any] = []
    while (message := receive(channel)) is not None:
        kind, given = message
        if kind == "reset":
            made = [_begun(make, row) for row in given]
            begun, replies = [one for one, _ in made], [reply for _, reply in made]
        else:
            replies = [_stepped(begun[place], answer) for place, answer in given]
        if os.getpid() != process:
            os._exit(0)  # a fork that the user's code made and that returned too
        send(channel, replies)


def loaded(config: OwnEnvironmentConfig, digests: dict[str, str]) -> Any:
    """The class. Raises what loading it raises, and SourceError if it lacks a method or that is an `async def`."""
    make = load(config, digests)
    for name in ("reset", "step") if isinstance(make, type) else ():
        method = getattr(make, name, None)
        if not callable(method) or inspect.iscoroutinefunction(method):
            what = f"has no method {name}" if method is None else f"has a {name} that isn't a plain method"
            raise SourceError(f"The environment {config.where} {what}.", f"Write `def {name}` in the class.")
    return make


def _begun(make: Any, row: dict[str, Any]) -> tuple[Any, Reply]:
    """An object, and its opening or why it has none."""
    environment, prompt, reply = None, row["prompt"], {}
    with Caught() as caught:
        environment = make()
        opening = environment.reset(row)
        messages, tools = opening if isinstance(opening, tuple) else (opening, None)
        given = [{name: one[name] for name in ("role", "content")} for one in messages or prompt]
        if not all(isinstance(text, str) for one in given for text in one.values()):
            raise TypeError("a role or a content of its messages isn't text")
        if not all(isinstance(tool, Mapping) for tool in tools or ()):
            raise TypeError("a tool isn't a JSON schema")
        reply = json.loads(json.dumps({"messages": given, "tools": [*map(dict, tools or ())]}))
    return environment, {"failed": caught.message} if caught.error is not None else reply


def _stepped(environment: Any, answer: str) -> Reply:
    """What an object says to an answer, or why it can't."""
    reply: Reply = {}
    with Caught() as caught:
        observation, reward, done = environment.step(answer)
        number = float(reward)
        if not abs(number) <= LARGEST:  # NaN is none either
            raise ValueError(f"it gave the reward {number:g}")
        said = "" if observation is None else str(observation)
        reply = {"observation": said, "reward": number, "done": bool(done)}
    return {"failed": caught.message} if caught.error is not None else reply


if __name__ == "__main__":
    os.dup2(2, 1)
    serve(socket.socket(fileno=int(sys.argv[1])))
