"""`python -m benchmarks.posttrain.best_of_n`: does one round of best of n raise the share of right answers?

The model, the sums and the held-out questions are those of `python -m benchmarks.posttrain.grpo`: it learned a right
and a wrong answer to each question, and prefers neither. It answers the other questions eight times, and right answers
become instructions and pairs. Arms train it on these: `sft` on the instructions, `dpo` on the pairs. Measured are
greedy answers to the held-out questions, before and after. A seed decides first weights, orders and samples, never the
data. Intervals are 95 % of Student's t.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.measure import DATA
from benchmarks.posttrain.grpo import knowing, make_sums
from benchmarks.posttrain.seeds import made, model_of, parser_of, print_mean, right_share, runtime_of
from storage.artifact import Artifact
from tasks.posttrain.best_of_n import BestOfNConfig, best_of_n
from tasks.posttrain.methods.dpo import DpoConfig, dpo
from tasks.posttrain.methods.sft import SftConfig, sft

HELD_OUT, LONGEST = 0.2, 4  # share of questions, and tokens of an answer


def main() -> None:
    """Train and measure, and print the table."""
    options = _options()
    runtime, right = runtime_of(options.threads), Artifact.at(make_sums(options.folder / "right", wrong=False))
    columns = ("seed", "mean reward", "best of n", "instructions", "pairs", "before", "sft", "dpo")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    gains: dict[str, list[float]] = {"sft": [], "dpo": []}
    for seed in range(options.seeds):
        model = knowing(options.folder, 8, options.threads, seed)
        folder, before = options.folder / str(seed) / "best", right_share(model, right, HELD_OUT, LONGEST)
        config = BestOfNConfig(n=options.n, max_new_tokens=LONGEST, validation_share=HELD_OUT, seed=seed)
        best = made(folder / "best_of_n", runtime, lambda out: best_of_n.function(config, model, right, None, out))  # noqa: B023
        shared: dict[str, Any] = {"seed": seed, "validation_share": 0, "global_batch": 16, "epochs": options.epochs}
        tuned = SftConfig(**shared, learning_rate=1e-3)
        aligned = DpoConfig(**shared, learning_rate=5e-5)
        rows, pairs = (Artifact.at(best.path / part) for part in ("instructions", "preferences"))
        after = {
            "sft": made(folder / "sft", runtime, lambda out: sft.function(tuned, model, rows, out)),  # noqa: B023
            "dpo": made(folder / "dpo", runtime, lambda out: dpo.function(aligned, model, pairs, out)),  # noqa: B023
        }
        shares = {arm: right_share(model_of(out), right, HELD_OUT, LONGEST) for arm, out in after.items()}
        for arm, share in shares.items():
            gains[arm].append(share - before)
        counts = best.counts
        rewards = f"{counts['mean_reward']:.3f} | {counts['best_reward']:.3f}"
        numbers = f"{counts['instructions']} | {counts['pairs']}"
        told = " | ".join(f"{share:.1%}" for share in (before, *shares.values()))
        print(f"| {seed} | {rewards} | {numbers} | {told} |", flush=True)
    for arm, values in gains.items() if options.seeds > 1 else ():
        print_mean(f"mean gain of {arm}", values, "+.1%")


def _options() -> argparse.Namespace:
    parser = parser_of("best_of_n", __doc__)
    parser.add_argument("--n", type=int, default=8, help="answers to a question")
    parser.add_argument("--epochs", type=float, default=2, help="over the instructions and the pairs")
    parser.set_defaults(folder=DATA / "grpo")  # its models are those of GRPO
    return parser.parse_args()


if __name__ == "__main__":
    main()
