"""`python -m benchmarks.gpu`: what the model half does on one GPU, in minutes and without network.

Sections run in turn, each until its share of the time is over: what one leaves goes to the next. Each row is printed
and kept in rows.jsonl as soon as it is measured, so that a run that is cut off still tells. Exits with 1 if something
failed, else with 3 if time was over before the end.

It needs no Prefect and none of the data stages' packages: torch, transformers, numba, pyarrow and what
benchmarks/gpu/pack.sh collects. On a machine without GPU, `--device cpu --tiny` shows in minutes that all of
it runs but what a GPU alone has.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from benchmarks.gpu import attention, generation, posttrain, speed, tests
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.results import Results
from benchmarks.measure import DATA, end_as_interrupted
from models.kernels import row_kernels

SECTIONS = {part.NAME: part.run for part in (attention, generation, posttrain, tests, speed)}
SHARES = {"attention": 2, "generation": 2, "posttrain": 3, "tests": 8, "speed": 8}  # of the time


def main() -> int:
    """Run the sections that the command line names."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__, formatter_class=raw)
    parser.add_argument("sections", nargs="*", default=list(SECTIONS), help=f"of {', '.join(SECTIONS)} (default all)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="models small enough for a CPU")
    parser.add_argument("--minutes", type=_minutes, default=9, help="when to stop (default 9)")
    parser.add_argument("--out", type=Path, default=DATA / "gpu", help="folder of rows.jsonl, which each run adds to")
    parser.add_argument("--data", type=Path, default=DATA / "gpu", help="folder of the tokens and models that it makes")
    options = parser.parse_args()
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}: choose from {', '.join(SECTIONS)}")
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print("torch sees no GPU here. Try `--device cpu --tiny`.", file=sys.stderr)
        return 2
    try:
        results = Results(options.out.resolve())
    except OSError as error:
        print(f"{options.out} can't have results: {error.strerror}. Name another folder by --out.", file=sys.stderr)
        return 2
    bench = Bench(options.device, options.tiny, 60 * options.minutes, results, options.data.resolve())
    results.row("machine", **bench.describe())
    if options.device == "cuda" and row_kernels.compiled("cuda") is row_kernels.PLAIN:
        results.failure("machine", "torch.compile fails here, and so will all that is compiled")
    for number, name in enumerate(options.sections):
        shares = [SHARES[other] for other in options.sections[number:]]
        with bench.until(bench.left * shares[0] / sum(shares)):
            SECTIONS[name](bench)
    took = bench.seconds - bench.left
    results.note("end", f"{took:.0f} s, {results.failed} failed, {results.late} left out for lack of time")
    return 1 if results.failed else 3 if results.late else 0


def _minutes(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of minutes: give one above 0")
    return number


if __name__ == "__main__":
    end_as_interrupted()
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("Interrupted. What was measured is in rows.jsonl.", file=sys.stderr)
        sys.exit(130)
