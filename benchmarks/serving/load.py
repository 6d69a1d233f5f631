"""A load of streamed chat completions: `python -m benchmarks.serving.load`. Prints one line of JSON.

Each client asks its next question once it has the answer. Only the standard library is used,
and answers are searched, not parsed: the client should cost little beside the server on the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import time
from dataclasses import dataclass, field
from string import ascii_lowercase
from urllib.parse import urlsplit

TEXT = re.compile(rb'"delta":\{"content":"((?:[^"\\]|\\.)+)"')
WORD = re.compile(rb"\S(?:\s|\\n)")  # the end of one, in JSON
FINISHED = re.compile(rb'"finish_reason":"(\w+)"')
QUESTIONS = (
    "What is a river?",
    "Name three colours and say where each occurs in nature.",
    "Write a short letter to a friend about a walk in the hills.",
    "Explain to a child why the sky is blue.",
    "How do I bake bread without an oven?",
    "What happened in the year 1848 in Europe?",
    "List five things that one needs for a garden.",
    "Tell me a story about a mill and a fox.",
)


@dataclass
class Answers:
    """Seconds to the first text, the end of the first word and the end of each request, characters of text, and how
    requests ended."""

    first: list[float] = field(default_factory=list)
    word: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    characters: int = 0
    finished: int = 0
    lost: list[str] = field(default_factory=list)


async def client(number: int, clients: int, asked: argparse.Namespace, answers: Answers) -> None:
    """Ask every `clients`-th question from `number` on."""
    address = urlsplit(asked.url)
    for place in range(number, asked.requests, clients):
        name = "".join(random.Random(f"{asked.seed} {place}").choices(ascii_lowercase, k=8)).title()  # in no cache yet
        question = f"I am {name}. {QUESTIONS[place % len(QUESTIONS)]}"
        messages = [{"role": "user", "content": question}]
        body = {"messages": messages, "max_tokens": asked.tokens, "temperature": 0, "stream": True}
        data = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        began = time.perf_counter()
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        received, first, word = bytearray(), 0.0, 0.0
        while not (received.endswith(b"\r\n0\r\n\r\n") and b"[DONE]" in received[-64:]):
            part = await reader.read(65536)
            if not part:
                answers.lost.append(received[:200].decode(errors="replace"))
                return
            received += part
            if not first and TEXT.search(part):
                first = time.perf_counter() - began
            if not word and WORD.search(b"".join(TEXT.findall(bytes(received)))):
                word = time.perf_counter() - began
            if b"HTTP/1.1 200" not in received[:16]:
                answers.lost.append(received[:300].decode(errors="replace"))
                return
        answers.whole.append(time.perf_counter() - began)
        answers.first.append(first or answers.whole[-1])
        answers.word.append(word or answers.whole[-1])
        answers.characters += sum(map(len, TEXT.findall(bytes(received))))
        answers.finished += bool(FINISHED.search(received)) and b"data: [DONE]" in received
        writer.close()


async def load(asked: argparse.Namespace) -> dict[str, object]:
    """All clients at once."""
    answers, began = Answers(), time.perf_counter()
    await asyncio.gather(*(client(number, asked.clients, asked, answers) for number in range(asked.clients)))
    seconds = time.perf_counter() - began
    return {
        "requests": len(answers.whole),
        "finished": answers.finished,
        "lost": answers.lost[:3],
        "seconds": seconds,
        "characters": answers.characters,
        "first": sorted(answers.first),
        "word": sorted(answers.word),
        "whole": sorted(answers.whole),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--seed", default="", help="equal seeds ask equal questions")
    print(json.dumps(asyncio.run(load(parser.parse_args()))))


if __name__ == "__main__":
    main()
