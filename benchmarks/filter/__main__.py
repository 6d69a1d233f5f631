"""`python -m benchmarks.filter`: every family of signals beside its peers, then what a changed threshold costs.

Each family is a command of its own, `python -m benchmarks.filter.FAMILY`, with more options; here they run in turn
with their defaults, and with the labelled sets when a folder of them is given.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

FAMILIES = (
    "form", "language", "pii", "pii_phones", "pii_secrets", "toxicity", "perplexity", "contamination", "threshold",
)  # fmt: skip
LABELLED = ("language", "pii", "toxicity")  # can be measured on labelled sets too
ONLY_LABELLED = ("pii",)  # are measured on nothing else


def main() -> None:
    """Read the options and run the families."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=FAMILIES, help=f"of {', '.join(FAMILIES)} (default all)")
    parser.add_argument(
        "--labelled", type=Path, help="the folder that holds langid_udhr, pii_presidio_synth, tox_surge, …"
    )
    options = parser.parse_args()
    unknown = sorted(set(options.families) - set(FAMILIES))
    if unknown:
        parser.error(f"unknown families: {', '.join(unknown)}; known are {', '.join(FAMILIES)}")
    for family in options.families:
        if family in ONLY_LABELLED and options.labelled is None:
            print(f"\n{family} is left out: it needs --labelled.", flush=True)
            continue
        labelled = ["--labelled", str(options.labelled)] if options.labelled and family in LABELLED else []
        command = ["-m", f"benchmarks.filter.{family}", *labelled]
        print(f"\n## `python {' '.join(command)}`\n", flush=True)
        subprocess.run([sys.executable, *command], check=False)


if __name__ == "__main__":
    main()
