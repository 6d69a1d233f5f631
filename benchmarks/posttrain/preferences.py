"""`python -m benchmarks.posttrain.preferences --store store`: do DPO and a reward model learn what is preferred?

For each seed the base of `tiny` is tuned on its instructions. From that model DPO and `reward` learn pairs, and a fifth
of these is held out, by a hash that no seed changes. Measured on them are the share whose preferred answer is more
likely (log-probabilities of whole answers) to the tuned model and to the one after DPO, the share that DPO made more
likely relative to the other answer (its implicit reward), and the share in which the judge gives it more.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, get_args

from benchmarks.measure import DATA
from benchmarks.posttrain.seeds import (
    add_store,
    made,
    model_of,
    of_tiny,
    parser_of,
    print_mean,
    read_preferences,
    runtime_of,
    tuned,
)
from models.tokenizer import load_tokenizer
from storage.artifact import Artifact
from tasks.download.pairs.form import PreferenceForm
from tasks.posttrain.methods.dpo import DPO, DpoConfig, dpo
from tasks.posttrain.methods.reward import RewardConfig, reward
from tasks.posttrain.methods.sft import SftConfig
from tasks.posttrain.pair_lengths import render_rows
from tasks.posttrain.reference.config import ReferenceConfig
from tasks.posttrain.reference.stage import reference
from tasks.posttrain.reference.table import FILE, with_reference

CONTEXT = 256  # of tiny
Scores = list[tuple[float, float]]  # log-probabilities of both answers of a pair


def main() -> None:
    """Train and measure, and print the table."""
    options = _options()
    base = of_tiny(options.store, "pretrain", "model")
    pairs = of_tiny(options.store, "pairs", "preferences")
    if options.pairs:
        pairs = read_preferences(options.pairs, options.folder / "pairs", options.form)
    print("| seed | held out | SFT: likelier | DPO: likelier | DPO: made likelier | judge (95 %) | calibration error |")
    print("|---|---|---|---|---|---|---|")
    columns: list[list[float]] = []
    for seed in range(options.seeds):
        before, after, counts = _trained(options, base, pairs, seed)
        shifts = [(new[0] - old[0], new[1] - old[1]) for old, new in zip(before, after, strict=True)]
        shares = [_preferred(before), _preferred(after), _preferred(shifts), counts["held_out_accuracy"]]
        columns.append(shares)
        low, high = counts["held_out_accuracy_95"]
        told = " | ".join(f"{share:.1%}" for share in shares)
        error = counts["calibration_error"]
        print(f"| {seed} | {len(before)} | {told} ({low:.1%} to {high:.1%}) | {error:.3f} |", flush=True)
    sft, likelier, made_likelier, judge = (list(column) for column in zip(*columns, strict=True))
    print_mean("DPO less SFT, likelier:", [new - old for old, new in zip(sft, likelier, strict=True)], "+.1%")
    print_mean("DPO, made likelier:", made_likelier, ".1%")
    print_mean("judge:", judge, ".1%")


def _options() -> argparse.Namespace:
    parser = parser_of("preferences", __doc__)
    add_store(parser)
    parser.add_argument("--pairs", type=Path, help="a JSON Lines file of pairs (default: those of tiny)")
    parser.add_argument("--form", choices=get_args(PreferenceForm), help="of these pairs, where that is ambiguous")
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--learning-rate", type=float, default=1e-4, help="of both")
    parser.set_defaults(folder=DATA / "preferences")
    return parser.parse_args()


def _trained(
    options: argparse.Namespace, base: Artifact, pairs: Artifact, seed: int
) -> tuple[Scores, Scores, dict[str, Any]]:
    """How likely the answers of held-out pairs are before DPO and after it, and what the judge counts."""
    folder, runtime = options.folder / str(seed), runtime_of(options.threads)
    rows = of_tiny(options.store, "pairs", "instructions")
    start = model_of(tuned(folder / "sft", runtime, SftConfig(seed=seed), base, rows))
    settings = {"seed": seed, "validation_share": 0.2, "epochs": options.epochs, "learning_rate": options.learning_rate}
    config = DpoConfig.model_validate(settings)
    aligned = made(folder / "dpo", runtime, lambda out: dpo.function(config, start, pairs, out))
    judge_config = RewardConfig.model_validate(settings)
    judge = made(folder / "reward", runtime, lambda out: reward.function(judge_config, start, pairs, out))
    _, held_out, _ = render_rows(DPO, config, pairs.files("*.jsonl"), load_tokenizer(start.path), CONTEXT)
    found = []
    for name, model in (("before", start), ("after", model_of(aligned))):
        asked = ReferenceConfig.of(config)
        scored = made(folder / name, runtime, lambda out: reference.function(asked, model, pairs, out))  # noqa: B023
        known = with_reference(held_out, scored.path / FILE)
        found.append([(row["ref_chosen_logps"], row["ref_rejected_logps"]) for row in known])
    return found[0], found[1], judge.counts


def _preferred(scores: Scores) -> float:
    return sum(chosen > rejected for chosen, rejected in scores) / len(scores)


if __name__ == "__main__":
    main()
