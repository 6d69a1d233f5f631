"""`gristmill mix` on three sources, of which one is useless: syllables at random, with the frequencies of words.

    python -m benchmarks.mixtures [--store FOLDER]

The target is held-out text of the other two. The command trains 24 small runs, proposes shares and checks them by 12
more. Its tables are printed.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path

import yaml

EMBEDDED = {"kind": "embedded", "held_out_share": 0.3, "instructions": 120, "preferences": 60, "answer_words": 20}
PRETRAIN = {"steps": 480, "warmup_steps": 20, "global_batch": 8, "sample_prompts": [], "validation_every": 480}
ASKED = ("--sources", "packages,encyclopedia-en,noise", "--target", "packages", "--target", "encyclopedia-en")


def noise(documents: int) -> list[str]:
    """Documents of words that mean nothing: of 3,000, the n-th as frequent as 1/n."""
    rng = random.Random(0)
    consonants, vowels = "bcdfghjklmnpqrstvwxz", "aeiou"
    words = [
        "".join(rng.choices(consonants)[0] + rng.choices(vowels)[0] for _ in range(rng.randint(1, 4)))
        for _ in range(3000)
    ]
    often = [1 / (place + 1) for place in range(len(words))]
    return [" ".join(rng.choices(words, often, k=rng.randint(150, 400))).capitalize() + "." for _ in range(documents)]


def profile(folder: Path) -> Path:
    """Write the profile and the useless source."""
    source, path = folder / "noise.jsonl", folder / "three.yaml"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in noise(500)))
    sources = [
        {**EMBEDDED, "corpora": ["encyclopedia"], "limit": 1500},
        {**EMBEDDED, "corpora": ["packages"], "limit": 300},
        {"kind": "files", "name": "noise", "paths": [str(source)]},
    ]
    values = {
        "extends": "smoke",
        "name": "three",
        "download": {"sources": sources, "benchmarks": []},
        **dict.fromkeys(("filter", "sft", "dpo", "evaluate", "export")),
        "tokenize": {"validation_share": 0.06},
        "pretrain": PRETRAIN,
    }
    path.write_text(yaml.safe_dump(values))
    return path


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("mixtures"), help="folder of the store")
    folder: Path = parser.parse_args().store
    folder.mkdir(parents=True, exist_ok=True)
    words = ["mix", str(profile(folder)), *ASKED, "--seeds", "4", "--store", str(folder / "store")]
    subprocess.run([sys.executable, "-m", "flows.cli", *words], check=True)


if __name__ == "__main__":
    main()
