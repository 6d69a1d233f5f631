"""`python -m benchmarks.serving RELEASE`: our server with all guards on beside the bare llama.cpp server, in turns.

RELEASE is a folder that `gristmill release save` wrote, with a GGUF file. Both servers have the same slots, context and
threads, and get the same questions, which are in no cache. At 1, 8 and 32 clients it prints the throughput as a ratio,
and the time to the first text, to the end of the first word and to the end of the answer. Ours sends a word once it has
ended, since an e-mail address may begin with any. So what it adds by itself is the difference to the end of the word.

`--soak N` sends N requests to ours alone, and prints its memory after each tenth of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.stage.machine import cores

SLOTS, CONTEXT = 8, 1024
ROW = "{:10}" + "{:>14}" + "{:>7}" + "{:>10}{:>8}{:>8}" * 3
BARE = """
import signal, sys
from xllamacpp import Server
from models.runtimes.llama_server import LlamaServerSpec, parameters
p = parameters(LlamaServerSpec(sys.argv[1], "127.0.0.1", int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])))
p.port, p.use_jinja = int(sys.argv[2]), True
server = Server(p)
signal.pause()
"""


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def started(command: list[str], port: int, path: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server that answers at `path`, ended afterwards."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            for _ in range(1200):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}{path}").read()
                    break
                if process.poll() is not None:
                    log.seek(0)
                    sys.exit(log.read().decode(errors="replace"))
                time.sleep(0.1)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def load(port: int, clients: int, requests: int, tokens: int, seed: str) -> dict[str, Any]:
    """The figures of one load, of the same questions for the same seed."""
    numbers = ("--clients", str(clients), "--requests", str(requests), "--tokens", str(tokens), "--seed", seed)
    command = [sys.executable, "-m", "benchmarks.serving.load", "--url", f"http://127.0.0.1:{port}", *numbers]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    if found["lost"] or found["finished"] != requests:
        sys.exit(f"lost: {requests - found['finished']} of {requests}: {found['lost']}")
    return found


def memory(process: int) -> int:
    """Resident bytes of the server itself, without its engine."""
    fields = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in fields if line.startswith("VmRSS"))


def percentile(values: list[float], share: float) -> float:
    """Of sorted values."""
    return values[min(int(share * len(values)), len(values) - 1)]


def ours(folder: Path, port: int, state: Path) -> list[str]:
    """The command of our server."""
    bounds = ("requests.queue=1000", "requests.queue_seconds=600")
    settings = (f"engine.slots={SLOTS}", f"engine.context={CONTEXT}", *bounds)
    options = [word for one in settings for word in ("--set", one)]
    words = [str(folder), "--port", str(port), "--state", str(state), *options]
    return [sys.executable, "-m", "flows.cli", "serve", *words]


def compare(folder: Path, gguf: Path, rounds: int, tokens: int) -> None:
    """Both servers in turns, so that both meet the same machine. They run at the same time, but only one is asked."""
    ports = {"llama.cpp": free_port(), "ours": free_port()}
    threads = str(cores())
    bare = [sys.executable, "-c", BARE, str(gguf), str(ports["llama.cpp"]), str(CONTEXT), str(SLOTS), threads]
    with (
        tempfile.TemporaryDirectory() as state,
        started(bare, ports["llama.cpp"], "/health"),
        started(ours(folder, ports["ours"], Path(state)), ports["ours"], "/ready"),
    ):
        for port in ports.values():
            load(port, 8, 16, tokens, "warm")
        heads = (
            "server",
            "characters/s",
            "ratio",
            "text p50",
            "p95",
            "p99",
            "word p50",
            "p95",
            "p99",
            "end p50",
            "p95",
            "p99",
        )
        for clients, requests in ((1, 8), (8, 32), (32, 64)):
            print(f"{clients} clients, {requests} requests of up to {tokens} tokens, medians of {rounds}; times in ms")
            print(ROW.format(*heads))
            runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ports}
            for number in range(rounds):
                for name, port in ports.items():
                    runs[name].append(load(port, clients, requests, tokens, f"{clients} {number}"))
            speeds = {name: [run["characters"] / run["seconds"] for run in of] for name, of in runs.items()}
            ratio = statistics.median(a / b for a, b in zip(speeds["ours"], speeds["llama.cpp"], strict=True))
            for name, of in runs.items():
                times = [
                    statistics.median(percentile(run[key], share) for run in of) * 1e3
                    for key in ("first", "word", "whole")
                    for share in (0.5, 0.95, 0.99)
                ]
                shown = (f"{statistics.median(speeds[name]):,.0f}", f"{ratio if name == 'ours' else 1:.3f}")
                print(ROW.format(name, *shown, *(f"{time:.1f}" for time in times)))


def soak(folder: Path, requests: int, tokens: int) -> None:
    """Memory over many requests."""
    port = free_port()
    with tempfile.TemporaryDirectory() as state, started(ours(folder, port, Path(state)), port, "/ready") as server:
        load(port, 32, 320, tokens, "warm")
        tenth = requests // 10
        sizes = []
        for number in range(10):
            load(port, 32, tenth, tokens, str(number))
            sizes.append(memory(server.pid))
        print(f"{requests:,} requests, none lost; the server's memory after each tenth, MB: ", end="")
        print(" ".join(f"{size / 1e6:.1f}" for size in sizes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("release", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--soak", type=int, metavar="N", default=0)
    asked = parser.parse_args()
    gguf = sorted((asked.release / "gguf").glob("model-*.gguf"))
    if not gguf:
        sys.exit(f"{asked.release} holds no GGUF file")
    if asked.soak:
        soak(asked.release, asked.soak, asked.tokens)
    else:
        compare(asked.release, gguf[0], asked.rounds, asked.tokens)


if __name__ == "__main__":
    main()
