"""python -m tests.fuzz [--seconds 60] [--seed 1] [door …]: mutated inputs for each door; --file reads one input."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from pathlib import Path

from storage.errors import GristmillError
from tests.fuzz.doors import DOORS
from tests.fuzz.guided import run_guided
from tests.fuzz.run import run_door

IMPORTED = ("profiles.load", "tasks.base.check", "transformers.models.llama.modeling_llama")  # the dearest of all doors


def main() -> int:
    """The exit status: 1 if any door fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("doors", nargs="*", choices=[[], *DOORS], metavar="door", help=", ".join(DOORS))
    parser.add_argument("--seconds", type=float, default=60, help="for each door")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--found", type=Path, default=Path("fuzz-found"), help="folder for inputs that fail")
    parser.add_argument("--guided", action="store_true", help="by coverage, one door: needs `pip install atheris`")
    parser.add_argument("--file", type=Path, help="read this input alone, by one door")
    chosen = parser.parse_args()
    if chosen.file:
        with tempfile.TemporaryDirectory() as folder:
            try:
                DOORS[chosen.doors[0]].read(chosen.file.read_bytes(), Path(folder))
            except GristmillError as error:
                print(f"{type(error).__name__}: {error}")
        return 0
    if chosen.guided:
        run_guided(chosen.doors[0], chosen.seconds, chosen.seed, chosen.found)
    failed = 0
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads do not survive a fork
    for name in chosen.doors or DOORS:
        DOORS[name].seeds()  # here, so that what several doors need is made once, as it is imported
    if not chosen.doors:
        for module in IMPORTED:
            importlib.import_module(module)
    for name in chosen.doors or DOORS:
        result = run_door(name, chosen.seconds, chosen.seed, chosen.found)
        print(f"{name:<14} {result.cases:>9,} cases", flush=True)
        if result.failure:
            failed += 1
            path, how = result.failure
            print(f"{how}\n  again: python -m tests.fuzz {name} --file {path}", flush=True)
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())
