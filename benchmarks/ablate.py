"""`python -m benchmarks.ablate`: how often an ablation calls equal arms different (A/A).

Trains `smoke` with as many seeds as the pairs need, and compares each half dozen of them as if it were two arms with
three seeds each. No arm differs from another but by chance. Arms without common seeds differ by more than arms with
them, and so does their noise.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from storage import refs
from storage.store import Store
from tasks.ablate.effects import UNCLEAR, Effect, effects
from tasks.ablate.measures import HELD_OUT, text_measures
from tasks.ablate.stage import place


def train(store: Path, seeds: int, jobs: int) -> None:
    """Train and measure `smoke` with all seeds, those that the store lacks."""
    words = ["ablate", "smoke", "--seeds", str(seeds), "--jobs", str(jobs), f"--store={store}"]
    threads = ["--set", "runtime.compute.threads=1"] if jobs > 1 else []
    subprocess.run([sys.executable, "-m", "flows.cli", *words, *threads], check=True)


def compared(store: Path, pairs: int, seeds: int) -> list[Effect]:
    """The effect of each pair on all held-out text."""
    opened = Store(str(store))
    manifest = opened.get(refs.resolve(opened, "smoke/ablate")).manifest
    assert manifest is not None
    texts = [opened.get(manifest.origins[f"text.{place(0, seed)}"].location) for seed in range(2 * pairs * seeds)]
    found = []
    for pair in range(pairs):
        mine = texts[2 * pair * seeds : 2 * (pair + 1) * seeds]
        (effect,) = effects([text_measures([mine[:seeds], mine[seeds:]], None)[0]])
        found.append(effect)
    return found


def main() -> None:
    """Print the effect of every pair, and how many are called different."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3, help="of each arm")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at once")
    parser.add_argument("--store", type=Path, default=Path("store-of-pairs"))
    asked = parser.parse_args()
    train(asked.store, 2 * asked.pairs * asked.seeds, asked.jobs)
    found = compared(asked.store, asked.pairs, asked.seeds)
    print(f"{'pair':>4}  {HELD_OUT}, difference (95 %)      p")
    for number, effect in enumerate(found, 1):
        print(f"{number:>4}  {effect.difference:+.4f} ({effect.low:+.4f} to {effect.high:+.4f})  {effect.p:.3f}")
    different = sum(effect.verdict != UNCLEAR for effect in found)
    inside = sum((effect.low or 0) <= 0 <= (effect.high or 0) for effect in found)
    print(f"{different} of {len(found)} equal pairs called different, 0 within {inside} intervals")


if __name__ == "__main__":
    main()
