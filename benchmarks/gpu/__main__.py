"""`python -m benchmarks.gpu`: what the model half does on one GPU, in minutes and without network.

Sections run in turn, those that tell most first, each until its share of the time is over: what one leaves goes to the
next. Each row is printed and kept in rows.jsonl as soon as it is measured, so that a run that is cut off still tells.
Exits with 1 if something failed, else with 3 if time was over before the end.

All but the tests are measured in one process, which is replaced where a row failed, took too long, or left something
behind. What is compiled is kept under --data, beside the tokens and the model: another call, or another machine of the
same kind that is given this folder, compiles only what is new. Give it no folder of others, since it is code that runs.

It needs no Prefect and none of the data stages' packages: torch, transformers, numba, pyarrow and what
benchmarks/gpu/pack.sh collects. On a machine without GPU, `--device cpu --tiny` shows in minutes that all of
it runs but what a GPU alone has.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.gpu import attention, generation, posttrain, speed, tests
from benchmarks.gpu.bench import START, Bench
from benchmarks.gpu.results import Results
from benchmarks.measure import DATA, Failed, end_as_interrupted

SECTIONS: dict[str, Callable[[Bench], None]] = {
    speed.NAME: speed.run,
    posttrain.NAME: posttrain.run,
    generation.NAME: generation.run,
    tests.NAME: tests.run,
    speed.FURTHER: speed.run_others,
    attention.NAME: attention.run,
}
SHARES = {"speed": 12, "posttrain": 3, "generation": 2, "tests": 6, "further": 6, "attention": 2}  # of the time
READ_TOKENS = {"speed", "posttrain", "generation", "further"}


def main() -> int:
    """Run the sections that the command line names."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__, formatter_class=raw)
    parser.add_argument("sections", nargs="*", default=list(SECTIONS), help=f"of {', '.join(SECTIONS)} (default all)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="models small enough for a CPU")
    parser.add_argument("--minutes", type=_minutes, default=9, help="when to stop (default 9)")
    parser.add_argument("--out", type=Path, default=DATA / "gpu", help="folder of rows.jsonl, which each run adds to")
    parser.add_argument(
        "--data", type=Path, default=DATA / "gpu", help="folder of what it makes: tokens, compiled code"
    )
    options = parser.parse_args()
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}: choose from {', '.join(SECTIONS)}")
    try:
        results = Results(options.out.resolve())
    except OSError as error:
        print(f"{options.out} can't have results: {error.strerror}. Name another folder by --out.", file=sys.stderr)
        return 2
    bench = Bench(options.device, options.tiny, 60 * options.minutes, results, options.data.resolve())
    bench.keep_compiled()
    try:
        return _run(bench, options.sections)
    except Failed as error:
        print(f"The process that measures can't be had: {error}", file=sys.stderr)
        return 1
    finally:
        bench.shared.close()


def _run(bench: Bench, sections: list[str]) -> int:
    """The sections, with the machine's own row before them. Raises Failed where there is nothing to measure with."""
    results = bench.results
    bench.shared.start()
    if READ_TOKENS & set(sections):
        _ = bench.tokens  # made while the other process imports
    found = bench.shared.ask("benchmarks.gpu.machine", {"device": bench.device}, START)
    bench.gpu = found["gpu"]
    if bench.device == "cuda" and bench.gpu is None:
        print("torch sees no GPU here. Try `--device cpu --tiny`.", file=sys.stderr)
        return 2
    results.row("machine", **found["row"])
    if not found["compiles"]:
        results.failure("machine", "torch.compile fails here, and so will all that is compiled")
    for number, name in enumerate(sections):
        shares = [SHARES[other] for other in sections[number:]]
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
