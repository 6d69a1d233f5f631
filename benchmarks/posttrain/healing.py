"""`python -m benchmarks.posttrain.healing --store store`: is a pruned model, healed by a teacher, worth more?

The base of `tiny` is tuned on its instructions: that is the teacher, and pruned it is the student. Four models of the
student's size then see the same rows as often, in the same order: the student by distillation, the student by SFT
without a teacher, and a model with random weights by distillation and by SFT. Measured is the cross-entropy of the
answers that were held out, by a hash that no seed changes, in nats a token.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.posttrain.seeds import add_store, made, model_of, of_tiny, parser_of, print_mean, runtime_of, tuned
from storage.artifact import Artifact
from tasks.posttrain.methods.distill import DistillConfig, distill
from tasks.posttrain.methods.sft import SftConfig
from tasks.posttrain.prune.config import PruneConfig
from tasks.posttrain.prune.stage import prune
from tasks.stage.output import Output

WAYS = ("pruned, distilled", "pruned, SFT", "random, distilled", "random, SFT")


def main() -> None:
    """Train and measure, and print the table."""
    options = _options()
    base, rows = of_tiny(options.store, "pretrain", "model"), of_tiny(options.store, "pairs", "instructions")
    print("| seed | teacher | pruned | " + " | ".join(WAYS) + " |\n|" + "---|" * (len(WAYS) + 3))
    columns: dict[str, list[float]] = {way: [] for way in WAYS}
    for seed in range(options.seeds):
        folder, runtime = options.folder / str(seed), runtime_of(options.threads)
        first = tuned(folder / "sft", runtime, SftConfig(seed=seed), base, rows)
        teacher = model_of(first)
        asked = PruneConfig(layers=options.layers, feed_forward=options.feed_forward)
        cut = made(folder / "prune", runtime, lambda out: prune.function(asked, teacher, rows, out))  # noqa: B023
        students = {"pruned": model_of(cut), "random": _random_like(model_of(cut), folder / "random", seed)}
        after: dict[str, Output] = {}
        for way in WAYS:
            start, method = way.split(", ")
            after[way] = _learned(options, folder / way, students[start], teacher, rows, method, seed)
            columns[way].append(_loss(after[way]))
        counts = first.counts["validation_loss"], after["pruned, SFT"].counts["initial_validation_loss"]
        told = " | ".join(f"{loss:.4f}" for loss in (*counts, *map(_loss, after.values())))
        print(f"| {seed} | {told} |", flush=True)
    best = columns["pruned, distilled"]
    for way in WAYS[1:]:
        less = [mine - theirs for mine, theirs in zip(best, columns[way], strict=True)]
        print_mean(f"pruned and distilled, less {way}:", less, "+.4f")


def _options() -> argparse.Namespace:
    parser = parser_of("healing", __doc__)
    add_store(parser)
    parser.add_argument("--layers", type=int, default=3, help="of the 4 that the model of tiny has")
    parser.add_argument("--feed-forward", type=int, default=256, help="neurons of a layer's 384")
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--hard-share", type=float, default=0.5, help="the answers' own weight in distillation")
    return parser.parse_args()


def _learned(
    options: argparse.Namespace,
    folder: Path,
    start: Artifact,
    teacher: Artifact,
    rows: Artifact,
    method: str,
    seed: int,
) -> Output:
    """What a way leaves."""
    runtime = runtime_of(options.threads)
    settings = {"seed": seed, "epochs": options.epochs, "learning_rate": options.learning_rate}
    if method == "SFT":
        return tuned(folder / "sft", runtime, SftConfig.model_validate(settings), start, rows)
    config = DistillConfig.model_validate({**settings, "hard_share": options.hard_share})
    return made(folder / "distill", runtime, lambda out: distill.function(config, start, rows, teacher, out))


def _loss(out: Output) -> float:
    """Cross-entropy of held-out answers; the loss of a distillation is another."""
    return float(out.counts.get("validation_cross_entropy", out.counts["validation_loss"]))


def _random_like(model: Artifact, folder: Path, seed: int) -> Artifact:
    """A model of this size with random weights, and its tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from models.tokenizer import copy_tokenizer

    if not (folder / "config.json").exists():
        torch.manual_seed(seed)
        config = AutoConfig.from_pretrained(model.path, local_files_only=True, trust_remote_code=False)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        copy_tokenizer(model.path, folder)
    return Artifact.at(folder)


if __name__ == "__main__":
    main()
