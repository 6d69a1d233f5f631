"""The child: `python -m tasks.serve.engines.transformers.server SPEC`, on a Unix socket.

One thread talks, another computes. An error in the latter, such as memory that runs out, ends the process and all its
answers. The server then starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import orjson
import torch

from models.runtimes.protocol import RuntimeFault
from models.runtimes.transformers import TransformersRuntime
from tasks.serve.engines.protocol import EngineRefusal, Sampling
from tasks.serve.engines.transformers.answer import Answer
from tasks.serve.engines.transformers.engine import LONGEST_LINE, TransformersSpec
from tasks.serve.engines.transformers.worker import Worker


def main(argument: str) -> None:
    """Serve until SIGTERM. Prints the reason and exits with 1 if transformers can't load the folder."""
    spec = TransformersSpec(**json.loads(argument))
    torch.set_num_threads(spec.threads)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # whose first line is for the server
            runtime = TransformersRuntime(Path(spec.folder), "cuda" if torch.cuda.is_available() else "cpu")
    except RuntimeFault as error:
        sys.exit(str(error))
    worker = Worker(runtime.model, spec.slots)
    worker.start()
    asyncio.run(_serve(spec, runtime, worker))


async def _serve(spec: TransformersSpec, runtime: TransformersRuntime, worker: Worker) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            asked = orjson.loads(await reader.readline())
            if "running" in asked:
                writer.write(_line({"running": worker.load}))
            else:
                await _answer(spec, runtime, worker, asked, reader, writer)
        writer.close()

    server = await asyncio.start_unix_server(connected, spec.socket, limit=LONGEST_LINE)
    print("ready", flush=True)
    await server.serve_forever()


async def _answer(
    spec: TransformersSpec,
    runtime: TransformersRuntime,
    worker: Worker,
    asked: dict[str, Any],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Answer a request, until it is done or the other side closes the connection."""
    loop, events = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any] | None]()

    def tell(event: dict[str, Any] | None) -> None:
        loop.call_soon_threadsafe(events.put_nowait, event)

    try:
        answer = Answer(runtime, asked["prompt"], Sampling(**asked["sampling"]), spec.context, tell)
        worker.take(answer)
    except EngineRefusal as refusal:
        writer.write(_line({"refused": str(refusal)}))
        return
    closed = asyncio.create_task(_until_closed(reader))
    closed.add_done_callback(lambda _: events.put_nowait(None))
    try:
        while (event := await events.get()) is not None:
            writer.write(_line(event))
            await writer.drain()
    finally:
        answer.is_closed = True
        closed.cancel()


async def _until_closed(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        await reader.read(1)


def _line(event: dict[str, Any]) -> bytes:
    return orjson.dumps(event) + b"\n"


if __name__ == "__main__":
    main(sys.argv[1])
