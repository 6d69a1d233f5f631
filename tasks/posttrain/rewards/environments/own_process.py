"""The process of a user's environment: `python -m tasks.posttrain.rewards.environments.own_process DESCRIPTOR`.

It loads the class, then makes an object for each conversation and passes answers on, until its socket closes. No torch.
"""

from __future__ import annotations

import math
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

from storage.errors import GristmillError
from tasks.posttrain.rewards.environments.config import OwnEnvironmentConfig
from tasks.sandbox.inside.settings import receive, send
from tasks.stage.user_function import Caught, load

Reply = dict[str, Any]


def serve(channel: socket.socket) -> None:
    """Answer what comes until the other end closes: first a config with digests, then resets and steps."""
    settings, digests = receive(channel)
    try:
        make = load(OwnEnvironmentConfig.model_validate_json(settings), digests)
    except GristmillError as error:
        send(channel, {"error": type(error).__name__, "message": error.message, "remedy": error.remedy})
        return
    process = os.getpid()
    send(channel, {})
    begun: list[tuple[Any, Reply]] = []
    while (message := receive(channel)) is not None:
        kind, given = message
        if kind == "reset":
            begun = [_begun(make, row) for row in given]
            replies = [{} if "failed" in reply else reply for _, reply in begun]
        else:
            replies = [_stepped(begun[place], answer) for place, answer in given]
        if os.getpid() != process:
            os._exit(0)  # a fork that the user's code made and that returned too
        send(channel, replies)


def _begun(make: Any, row: Mapping[str, Any]) -> tuple[Any, Reply]:
    """An object, and its opening or why it has none."""
    environment, reply = None, {}
    with Caught() as caught:
        environment = make()
        opening = environment.reset(row)
        messages, tools = opening if isinstance(opening, tuple) else (opening, [])
        given = [{"role": str(one["role"]), "content": str(one["content"])} for one in messages or row["prompt"]]
        reply = {"messages": given, "tools": list(tools)}
    return environment, {"failed": caught.message} if caught.error is not None else reply


def _stepped(begun: tuple[Any, Reply], answer: str) -> Reply:
    """What an object says to an answer, or why it can't."""
    environment, opening = begun
    if "failed" in opening:
        return opening
    reply: Reply = {}
    with Caught() as caught:
        observation, reward, done = environment.step(answer)
        number = float(reward)
        if not math.isfinite(number):
            raise ValueError(f"it gave the reward {number}")
        reply = {"observation": str(observation or ""), "reward": number, "done": bool(done)}
    return {"failed": caught.message} if caught.error is not None else reply


if __name__ == "__main__":
    os.dup2(2, 1)
    serve(socket.socket(fileno=int(sys.argv[1])))
