"""`python -m benchmarks.scaling`: does a ladder on two cores predict a training of eight times its largest compute?

Trains small models on the text of `tiny`, with 1,024 token ids, for budgets of 1e11 to 5e11 FLOPs, and fits their law.
Then trains a larger model for 4e12 FLOPs and compares. What the store has isn't made again.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from flows.matrix.arms import Arm, Matrix, Member
from flows.matrix.ladder import AskedLadder, Ladder, Rung, ladder_of, settings_of_rung
from flows.matrix.measured import measured
from flows.matrix.run import Shared
from flows.matrix.scaling import fitted
from flows.matrix.sizes import size_of
from flows.session import session_of
from profiles.load import load
from storage.artifact import Artifact
from tasks.ablate.measures import text_measures
from tasks.ablate.scaling import read_law
from tasks.ablate.scaling.report import in_words
from tasks.ablate.stage import place
from tasks.stage.session import Session, open_session

BUDGETS, SIZES, TIMES = [1e11, 2.2e11, 5e11], [24, 32, 40, 48], 8
LARGE, WARMUP = 64, 19  # its width and its warmup in steps
PROFILE = (
    "name=ladder",
    "tokenizer.vocab_size=1024",
    "pretrain.model={family: llama, depth: 2, width: 64, heads: 8, context: 128}",
    "pretrain.steps=6000",
    "pretrain.global_batch=4",
    "pretrain.warmup_steps=120",
    "pretrain.learning_rate=3.0e-2",
    "pretrain.muon_learning_rate=6.0e-3",
    "pretrain.schedule=wsd",
    "runtime.compute.threads=1",
    "runtime.pretrain.engine=ddp",
    "runtime.pretrain.preflight=never",
    "runtime.training.log_every=500",
    "runtime.training.checkpoint_every=100000",
)


def show(law: Artifact) -> None:
    """Print the tables of a law."""
    assert law.manifest is not None
    for title, rows in law.manifest.counts["tables"].items():
        print(f"\n{title}", *(" | ".join(row.values()) for row in rows), sep="\n")
    print(f"\n{law.manifest.counts['summary']}", flush=True)


def trained(ladder: Ladder, rung: Rung, overrides: list[str], session: Session) -> float:
    """The loss of a further training of the ladder."""
    settings = settings_of_rung(ladder.profile, rung)
    sets = [*overrides, *(f"{key}={value}" for key, value in settings.items()), "name=ladder-large"]
    members = [[Member(0, 0, load("tiny", sets), sets)]]
    matrix = Matrix("tiny", [Arm("large", settings)], ladder.matrix.seeds, members, "pretrain")
    text = measured(matrix, Shared(session), 1).text[place(0, 0)]
    return float(text_measures([[text]], None)[0].values[0, 0])


def main() -> None:
    """Print the ladder's law, what it predicts, and what the training reaches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="trainings at once")
    parser.add_argument("--store", type=Path, default=Path("store-of-ladder"))
    asked = parser.parse_args()
    overrides = [*PROFILE, f"runtime.store={asked.store.resolve()}"]
    ladder = ladder_of(AskedLadder("tiny", overrides, BUDGETS, SIZES, target=TIMES * BUDGETS[-1]))
    session = replace(
        session_of(ladder.profile, "pretrain"), call=lambda stage, config, inputs: stage.materialize(config, inputs)[0]
    )
    with open_session(session) as opened:
        law = fitted(ladder, opened, asked.jobs)
        show(law)
        flops, found = TIMES * BUDGETS[-1], read_law(law)
        of = size_of(ladder.profile, LARGE)
        batch = ladder.config.recipe["context"] * ladder.config.recipe["global_batch"]
        steps = round(flops / 6 / of.size / batch)
        predicted = found.predict(of.size, steps * batch)
        print(f"\npredicted for {of.name} and {steps * batch:,} tokens: {in_words(predicted)}", flush=True)
        loss = trained(ladder, Rung(of, steps, steps * batch, warmup=WARMUP), overrides, opened)
        print(f"trained: {loss:.4f} bits per byte, so the prediction is off by {predicted.value / loss - 1:+.2%}")


if __name__ == "__main__":
    main()
