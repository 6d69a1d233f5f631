"""`python -m tests.flows.away PORT ADDRESS`: a proxy to the server at ADDRESS, which a test can kill."""

from __future__ import annotations

import asyncio
import sys
from urllib.parse import urlsplit


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one side has said all."""
    while said := await reader.read(65536):
        writer.write(said)
        await writer.drain()
    writer.close()


async def main() -> None:
    """Listen until the process is killed."""
    there = urlsplit(sys.argv[2])

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection(there.hostname, there.port)
        await asyncio.gather(forward(reader, other_writer), forward(other_reader, writer), return_exceptions=True)

    async with await asyncio.start_server(accept, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
