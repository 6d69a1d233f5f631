"""`python -m benchmarks.filter`: every family of signals beside its peers, then what a changed threshold costs.

Each family is a command of its own, `python -m benchmarks.filter.FAMILY`, with more options; here they run in turn
with their defaults, and with the labelled sets and benchmarks' questions when folders of them are given.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

# What a family is run with: the folders that it needs, in braces
FAMILIES: dict[str, tuple[str, ...]] = {
    "form": (),
    "presets": (),
    "code": ("{packages}",),
    "unspaced": ("{unspaced}",),
    "templates": ("{data}",),
    "language": (),
    "language_length": ("{labelled}",),
    "pii": ("--labelled", "{labelled}"),
    "pii_phones": (),
    "pii_secrets": (),
    "toxicity": (),
    "perplexity": (),
    "cascade": (),
    "contamination": (),
    "contamination_recall": ("{data}", "--folder", "{scratch}"),
    "threshold": (),
}
LABELLED = ("language", "toxicity")  # can be measured on labelled sets too


def main() -> None:
    """Read the options and run the families."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=list(FAMILIES), help=f"of {', '.join(FAMILIES)} (default all)")
    parser.add_argument(
        "--labelled", type=Path, help="the folder that holds langid_udhr, pii_presidio_synth, tox_surge, …"
    )
    parser.add_argument("--data", type=Path, help="the folder that holds eval/olmo_hf, pretrain and sft")
    parser.add_argument("--unspaced", metavar="LANGUAGE=FILE", help="good text in a script without spaces")
    options = parser.parse_args()
    unknown = sorted(set(options.families) - set(FAMILIES))
    if unknown:
        parser.error(f"unknown families: {', '.join(unknown)}; known are {', '.join(FAMILIES)}")
    with tempfile.TemporaryDirectory() as scratch:
        given = {
            "packages": sysconfig.get_paths()["purelib"],
            "scratch": scratch,
            "labelled": options.labelled,
            "data": options.data,
            "unspaced": options.unspaced,
        }
        for family in options.families:
            run(family, {name: str(value) for name, value in given.items() if value is not None})


def run(family: str, given: dict[str, str]) -> None:
    """Run a family with what is given, or say what it lacks."""
    words = FAMILIES[family]
    if family in LABELLED and "labelled" in given:
        words = ("--labelled", "{labelled}")
    try:
        words = tuple(word.format_map(given) for word in words)
    except KeyError as lacking:
        print(f"\n{family} is left out: it needs --{lacking.args[0]}.", flush=True)
        return
    command = ["-m", f"benchmarks.filter.{family}", *words]
    print(f"\n## `python {' '.join(command)}`\n", flush=True)
    subprocess.run([sys.executable, *command], check=False)


if __name__ == "__main__":
    main()
