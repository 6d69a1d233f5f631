"""`python -m benchmarks.posttrain.ppo`: does PPO raise a judge's reward on prompts that it does not learn from, and how
far does the model go for it?

The models and the sums are those of grpo.py. A reward model learns from preferences of right over wrong answers, and
PPO from it. Measured are the judge's rewards of greedy answers to held-out questions, before and after.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.posttrain.grpo import asked, knowing, make_sums, sums
from benchmarks.posttrain.seeds import print_mean, runtime_of
from storage.artifact import Artifact
from tasks.posttrain.methods.ppo import ppo
from tasks.posttrain.methods.reward import RewardConfig, reward
from tasks.posttrain.ppo.config import PpoConfig
from tasks.stage.output import Output
from tasks.training.logs import read_log


def main() -> None:
    """Train and measure, and print the table."""
    options = asked("ppo", __doc__, epochs=4, beta=0.1, learning_rate=1.5e-4)
    print("| seed | judge's accuracy | reward before | after | gain | largest KL of a step | KL of the last step |")
    print("|---|---|---|---|---|---|---|")
    gains = []
    for seed in range(options.seeds):
        accuracy, before, after, kl = trained(options, seed)
        gains.append(after - before)
        rewards = f"{before:.2f} | {after:.2f} | {after - before:+.2f}"
        print(f"| {seed} | {accuracy:.1%} | {rewards} | {max(kl):.3f} | {kl[-1]:.3f} |", flush=True)
    print_mean("mean gain", gains, "+.2f")


def trained(options: argparse.Namespace, seed: int) -> tuple[float, float, float, list[float]]:
    """The judge's held-out accuracy, its mean reward of greedy answers before and after PPO, and the KL divergence of
    each step, in nats a token."""
    folder, runtime = options.folder / str(seed), runtime_of(options.threads)
    model = knowing(options.folder, options.sft_epochs, options.threads, seed)
    judged = Output.at(folder / "reward", stage="reward", runtime=runtime)
    settings = RewardConfig(validation_share=0.2, seed=seed, epochs=6, learning_rate=1e-3)
    reward.function(settings, model, Artifact.at(make_preferences(options.folder / "preferences")), judged)
    out = Output.at(folder / "ppo", stage="ppo", runtime=runtime)
    config = PpoConfig(
        validation_share=0.2,
        seed=seed,
        global_batch=64,
        passes=4,
        epochs=options.epochs,
        max_new_tokens=4,
        learning_rate=options.learning_rate,
        beta=options.beta,
    )
    right = Artifact.at(make_sums(options.folder / "right", wrong=False))
    ppo.function(config, model, right, Artifact.at(judged.path / "model"), out)
    kl = [row["kl"] for row in read_log(out.path / "log.jsonl")]
    counts = out.counts
    return judged.counts["held_out_accuracy"], counts["initial_validation_reward"], counts["validation_reward"], kl


def make_preferences(folder: Path) -> Path:
    """Of each question, the right answer over the wrong one."""
    rows: list[dict[str, Any]] = [
        {
            "id": right["id"],
            "source": "sums",
            "prompt": right["messages"][:1],
            "chosen": right["messages"][1:],
            "rejected": wrong["messages"][1:],
        }
        for right, wrong in zip(sums(), sums(off=1), strict=True)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


if __name__ == "__main__":
    main()
