"""The process of a user's own reward: `python -m tasks.posttrain.rewards.function_process DESCRIPTOR`.

It loads the function, then answers batches over a socket until that closes. No torch.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from storage.errors import GristmillError, SourceError
from tasks.posttrain.rewards.config import LARGEST, PythonReward
from tasks.sandbox.inside.settings import receive, send
from tasks.stage.user_function import Caught, Function, load

Reply = dict[str, Any]


def serve(channel: socket.socket) -> None:
    """Answer what comes until the other end closes: first a config with digests, then batches."""
    settings, digests = receive(channel)
    config = PythonReward.model_validate_json(settings)
    try:
        function = loaded(config, digests)
    except GristmillError as error:
        send(channel, {"error": type(error).__name__, "message": error.message, "remedy": error.remedy})
        return
    process = os.getpid()
    one_by_one = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    send(channel, {"one_by_one": one_by_one})
    while (batch := receive(channel)) is not None:
        reply = asyncio.run(_each(function, config, batch)) if one_by_one else _together(function, batch)
        if os.getpid() != process:
            os._exit(0)  # a fork that the function made and that returned too: a second reply would be the next batch's
        send(channel, reply)


def loaded(config: PythonReward, digests: dict[str, str]) -> Function:
    """The function. Raises what loading it raises, and SourceError if it doesn't take three arguments."""
    function = load(config, digests)
    with Caught() as caught:
        inspect.signature(function).bind([], [], [])
    if caught.error is not None:
        raise SourceError(
            f"The reward {config.where} can't be called with three arguments: {caught.message}.",
            "Write it as `def reward(prompts, answers, rows)`.",
        )
    return function


def _together(function: Function, batch: Sequence[Any]) -> Reply:
    """The numbers of one call with all answers."""
    count = len(batch[1])  # before the function can change its lists
    with Caught() as caught:
        returned = function(*batch)
        numbers = returned.tolist() if hasattr(returned, "tolist") else returned
        if isinstance(numbers, str | bytes | Mapping):
            raise TypeError(f"it returned a {type(numbers).__name__}, not a list of numbers")
        numbers = list(numbers)
        if len(numbers) != count:
            raise ValueError(f"it returned {len(numbers)} values for {count} answers")
    return _failed(caught) if caught.error is not None else _checked(numbers)


def _failed(caught: Caught) -> Reply:
    return {"failed": caught.message}


async def _each(function: Function, config: PythonReward, batch: Sequence[Any]) -> Reply:
    """The number of each answer, by a call of its own, some at a time."""
    turn = asyncio.Semaphore(config.concurrent)

    async def one(prompt: Any, answer: Any, row: Any) -> Reply:
        async with turn:
            with Caught() as caught:
                returned = await asyncio.wait_for(function([prompt], [answer], [row]), config.seconds)
        if isinstance(caught.error, TimeoutError):
            return {"failed": f"it took longer than {config.seconds:g} s"}
        return _together(lambda *_: returned, [[prompt], [answer]]) if caught.error is None else _failed(caught)

    replies = await asyncio.gather(*(one(*each) for each in zip(*batch, strict=True)))
    return {
        "values": [reply["values"][0] if "values" in reply else None for reply in replies],
        "why": [reply["why"][0] if "why" in reply else reply["failed"] for reply in replies],
    }


def _checked(values: Sequence[Any]) -> Reply:
    """The numbers as they can be sent, and why an answer has none."""
    numbers: list[float | None] = []
    why: list[str] = []
    for value in values:
        number = None
        with Caught() as caught:
            value = value.item() if hasattr(value, "item") else value  # numpy's and torch's numbers
            number = None if value is None else float(value)
        fault = caught.message if caught.error is not None else ""
        if not isinstance(value, bool | int | float | None):
            fault = f"it returned a {type(value).__name__}, not a number"
        elif number is not None and not abs(number) <= LARGEST:  # NaN is none either
            fault = f"it returned {number:g}"
        numbers.append(None if fault else number)
        why.append(fault)
    return {"values": numbers, "why": why}


if __name__ == "__main__":
    os.dup2(2, 1)
    serve(socket.socket(fileno=int(sys.argv[1])))
