"""`python -m benchmarks.serving.guards`: what the guards of serving cost.

Real text goes through the default policy as an answer, in chunks of four characters, which is about a token of English:
mean CPU microseconds and the 99th percentile of the wall time of a chunk, the characters held back, and the findings.
Worst cases follow, then requests of three sizes, and at last the seconds and the memory of the start, in a new process.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tasks.download.config import EmbeddedSource
from tasks.download.sources.embedded import documents
from tasks.serve.guards import Guards, GuardsConfig, OutputGuard

TOKEN = 4  # characters
START = """
import re, time
begun = time.monotonic()
from tasks.serve.guards import Guards, GuardsConfig
imported = time.monotonic()
Guards(GuardsConfig())
kilobytes = re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]
print(imported - begun, time.monotonic() - imported, kilobytes)
"""
HOSTILE = {
    "telephone numbers": "+49 30 1234567 ",
    "numbers of 8 digits": "12345678,",
    "rows of digits": "1 ",
    "addresses": "a.a.a.a@",
    "one letter": "a",
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--characters", type=int, default=300_000, help="of each text (default 300,000)")
    size: int = parser.parse_args().characters
    guards = Guards(GuardsConfig())
    print("| answer | µs CPU a token | p99 wall | held back: mean | p99 | most | findings |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name, text in {**_texts(size), **{name: (bit * size)[: size // 5] for name, bit in HOSTILE.items()}}.items():
        print(f"| {name} | {_answer(guards.output(), text)} |", flush=True)
    text = _texts(200_000)["encyclopedia"]
    print("\n| request | ms CPU |\n|---|---|")
    for length in (500, 4_000, 200_000):
        print(f"| {length:,} characters | {_request(guards, text[:length]):.2f} |", flush=True)
    started = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True).stdout.split()
    imported, made, kilobytes = map(float, started)
    print(
        f"\nA start imports for {imported:.1f} s, then takes {made:.1f} s. The process has {kilobytes / 1000:.0f} MB."
    )


def _texts(size: int) -> Mapping[str, str]:
    code = sorted(Path(sysconfig.get_paths()["purelib"]).glob("prefect/*.py"))
    return {
        **{
            kind: _joined((row.text for row in documents(EmbeddedSource(corpora=[kind]))), size)
            for kind in ("encyclopedia", "speeches", "packages")
        },
        "code": _joined((path.read_text() for path in code), size),
    }


def _joined(texts: Iterator[str], size: int) -> str:
    parts: list[str] = []
    have = 0
    for text in texts:
        parts.append(text)
        have += len(text)
        if have >= size:
            break
    return "\n\n".join(parts)[:size]


def _answer(guard: OutputGuard, text: str) -> str:
    times, held, sent = [], [], 0
    cpu = time.process_time()
    for start in range(0, len(text), TOKEN):
        begin = time.perf_counter()
        sent += len(guard.feed(text[start : start + TOKEN]))
        times.append(time.perf_counter() - begin)
        held.append(max(start + TOKEN - sent, 0))
    guard.finish()
    mean = (time.process_time() - cpu) / len(times) * 1e6
    found = sum(finding.count for finding in guard.findings)
    waits = "- | - | -" if found else f"{statistics.mean(held):.1f} | {_percentile(held):.0f} | {max(held):.0f}"
    return f"{mean:.1f} | {_percentile(times) * 1e6:.0f} | {waits} | {found}"


def _percentile(values: list[float] | list[int]) -> float:
    return sorted(values)[len(values) * 99 // 100]


def _request(guards: Guards, text: str) -> float:
    cpu = time.process_time()
    for _ in range(10):
        guards.check_input([text])
    return (time.process_time() - cpu) / 10 * 1e3


if __name__ == "__main__":
    main()
