"""`python -m benchmarks.filter.code FOLDER`: the rules for source code beside the same written with Python's own means.

FOLDER holds files of any language, such as an environment's site-packages. The reference is The Stack's basic filter
(`preprocessing/filtering.py` of bigcode-dataset, with its definitions of line lengths and alphanumeric characters) and
StarCoder 2's published expressions for base64 and \\u data. Told are other verdicts by rule, what each rule removes,
and the speed of both.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import positive
from tasks.filter.code.family import FAMILY, CodeRules
from tasks.filter.code.measure import CodeConfig, measure_code
from tasks.text.languages import language_of

BATCH = 256
BASE64 = re.compile(r"[a-zA-Z0-9+/\n=]{64,}")
ESCAPES = re.compile(r"(?:\\u[0-9a-fA-F]{4}){8,}")


def basic(text: str) -> dict[str, float]:
    """The Stack's measures of a file, and the longest run of encoded data without pairs of hexadecimal digits."""
    lengths = [len(line) for line in text.splitlines()]
    runs = [match.end() - match.start() for expression in (BASE64, ESCAPES) for match in expression.finditer(text)]
    return {
        "code_longest_line": max(lengths),
        "code_mean_line": float(np.mean(lengths)),
        "code_alphanumeric": float(np.mean([character.isalnum() for character in text])),
        "code_alphabetic": sum(map(str.isalpha, text)) / len(text),
        "code_longest_encoded": max(runs, default=0),
    }


def read(folder: Path, megabytes: float) -> list[tuple[str, str]]:
    """(path, text) of the files whose language is known, in the order of their names."""
    found, size = [], 0
    for path in sorted(folder.rglob("*")):
        if size >= megabytes * 1e6:
            break
        if path.is_file() and language_of(path.name):
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
            if text:
                found.append((str(path.relative_to(folder)), text))
                size += len(text.encode())
    return found


def main() -> None:
    """Read the options, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=positive, default=30)
    options = parser.parse_args()
    files = read(options.folder, options.megabytes)
    size = sum(len(text.encode()) for _, text in files) / 1e6
    columns = [
        (pa.array([text for _, text in part]), pa.array([json.dumps({"path": path}) for path, _ in part]))
        for part in (files[at : at + BATCH] for at in range(0, len(files), BATCH))
    ]
    measure_code(CodeConfig(), *columns[0])  # compiles
    started = time.process_time()
    batches = [measure_code(CodeConfig(), *column) for column in columns]
    ours = time.process_time() - started
    started = time.process_time()
    plain = [basic(text) for _, text in files]
    theirs = time.process_time() - started

    signals = [row for batch in batches for row in batch.to_pylist()]
    removed: Counter[str] = Counter()
    other: Counter[str] = Counter()
    kept = 0
    for batch in batches:
        tests = [(rule.name, rule.test(batch).fails) for rule in FAMILY.rules(CodeRules())]
        for row in range(batch.num_rows):
            first = next((name for name, fails in tests if fails[row]), None)
            removed.update([first] if first else [])
            kept += first is None
    for signal, wanted in zip(signals, plain, strict=True):
        other.update(name for name, value in wanted.items() if is_other(name, signal, value))
    print(f"{len(files):,} files, {size:.1f} MB, {kept:,} kept\n")
    print("| rule | files removed first by it |\n|---|---|")
    for name, count in removed.most_common():
        print(f"| {name} | {count} |")
    print(f"\nOther measures than the reference: {dict(other) or 'none'}")
    print(f"{size / ours:.1f} MB a core-second; the reference {size / theirs:.1f}")


def is_other(name: str, signal: dict[str, Any], value: float) -> bool:
    """Whether a measure differs from the reference; pairs of hexadecimal digits may make a longer run."""
    if name == "code_longest_encoded":
        return bool(signal[name] < value)
    return bool(abs(signal[name] - value) > 1e-9 * max(1, value))


if __name__ == "__main__":
    main()
