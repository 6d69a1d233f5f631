"""`python -m benchmarks.posttrain.grpo`: does GRPO raise the share of right answers, how far does the model go for it,
and how long does that take, with all weights and with LoRA?

A small model learns sums of two digits by SFT, from a right and a wrong answer to each question, so that it knows both
and prefers neither. GRPO then rewards exact answers to the questions of its training. Measured are greedy answers to
questions that it was not rewarded for, before and after, for each seed, and the 95 % interval of the mean gain
(Student's t). The sums are generated, each asked for in four ways, and a hash of the question holds a fifth of them out
of GRPO, and of SFT too: a seed decides first weights, orders and samples, never the data.

Of each seed all arms start from the same model and have the same prompts. `full` trains all weights by the loss `grpo`
in six epochs. `short` trains them by `dapo` in two. `lora` trains an adapter by `dapo` in one and a third, at six times
the rate, both chosen on the seeds 10 to 13. Seconds are those of the training, with its validations and without the
start of its process.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.measure import DATA
from benchmarks.posttrain.seeds import made, model_of, parser_of, print_mean, runtime_of, tuned
from models.config import ModelConfig
from storage.artifact import Artifact
from storage.shards.documents import Document, write_documents
from tasks.posttrain.methods.grpo import GrpoConfig, grpo
from tasks.posttrain.methods.sft import SftConfig
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tasks.tokenizer import TokenizerConfig, train_tokenizer
from tasks.training.logs import read_log

QUESTIONS = ("{}+{}", "{} plus {}", "add {} and {}", "sum of {} and {}")
ARMS = ("full", "short", "lora")
BELOW = 10
VOCABULARY = 300


def main() -> None:
    """Train and measure, and print the tables."""
    options = asked("grpo", __doc__, epochs=6, beta=0.04, learning_rate=5e-4)
    print("| seed | arm | before | after | gain | largest KL of a step | KL of the last step | steps | seconds |")
    print("|---|---|---|---|---|---|---|---|---|")
    gains: dict[str, list[float]] = {arm: [] for arm in options.arms}
    seconds: dict[str, list[float]] = {arm: [] for arm in options.arms}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for arm in options.arms:
            out = trained(options, arm, seed)
            before, after = out.counts["initial_validation_reward"], out.counts["validation_reward"]
            gains[arm].append(after - before)
            seconds[arm].append(out.facts["training_seconds"])
            kl = [row["kl"] for row in read_log(out.path / "log.jsonl")]
            shares = f"{before:.1%} | {after:.1%} | {after - before:+.1%}"
            divergence = f"{max(kl):.3f} | {kl[-1]:.3f}"
            print(f"| {seed} | {arm} | {shares} | {divergence} | {len(kl)} | {seconds[arm][-1]:.1f} |", flush=True)
    for arm in options.arms if options.seeds > 1 else ():
        print_mean(f"mean gain of {arm}", gains[arm], "+.1%")
    *others, last = options.arms
    for other in others if options.seeds > 1 else ():
        print_mean(f"{last} less {other}", [b - a for a, b in zip(gains[other], gains[last], strict=True)], "+.1%")
        ratios = [b / a for a, b in zip(seconds[other], seconds[last], strict=True)]
        spread = f"median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}"
        print(f"\nseconds of {last} over those of {other}: {spread}")


def asked(method: str, about: str | None, *, epochs: float, beta: float, learning_rate: float) -> argparse.Namespace:
    """What the command of a method was given, with these defaults."""
    parser = parser_of(method, about)
    parser.add_argument("--sft-epochs", type=float, default=8)
    parser.add_argument("--epochs", type=float, default=epochs, help=f"of {method.upper()} over its prompts")
    parser.add_argument("--beta", type=float, default=beta)
    parser.add_argument("--learning-rate", type=float, default=learning_rate)
    if method == "grpo":
        parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
        parser.add_argument("--first-seed", type=int, default=0)
    parser.set_defaults(folder=DATA / "grpo")  # PPO's models are those of GRPO
    return parser.parse_args()


def trained(options: argparse.Namespace, arm: str, seed: int) -> Output:
    """What `grpo` leaves under an arm; made once in a folder."""
    shared: dict[str, Any] = {
        "validation_share": 0.2,
        "seed": seed,
        "global_batch": 32,
        "group": 8,
        "max_new_tokens": 4,
        "max_drop": None,
    }
    config = GrpoConfig.model_validate({**shared, "beta": options.beta, **settings_of(options, arm)})
    right = Artifact.at(make_sums(options.folder / "right", wrong=False))
    model = knowing(options.folder, options.sft_epochs, options.threads, seed)
    return made(
        options.folder / str(seed) / arm / "grpo",
        runtime_of(options.threads),
        lambda out: grpo.function(config, model, right, None, out),
    )


def settings_of(options: argparse.Namespace, arm: str) -> dict[str, Any]:
    """What differs between the arms."""
    if arm == "full":
        return {"loss": "grpo", "epochs": options.epochs, "learning_rate": options.learning_rate}
    if arm == "short":
        return {"loss": "dapo", "epochs": options.epochs / 3, "learning_rate": options.learning_rate}
    rate = 6 * options.learning_rate
    return {"loss": "dapo", "epochs": options.epochs / 4.5, "learning_rate": rate, "adapter": {"rank": 16, "alpha": 32}}


def knowing(folder: Path, sft_epochs: float, threads: int, seed: int) -> Artifact:
    """The model after SFT on right and wrong answers; made once in a folder."""
    runtime = runtime_of(threads)
    both = Artifact.at(make_sums(folder / "both", wrong=True))
    config = SftConfig(validation_share=0.2, seed=seed, global_batch=16, epochs=sft_epochs, learning_rate=3e-3)
    base = Artifact.at(make_base(folder, seed, runtime))
    return model_of(tuned(folder / str(seed) / "sft", runtime, config, base, both))


def make_base(folder: Path, seed: int, runtime: Runtime) -> Path:
    """A model of 0.1M parameters with random weights, and a tokenizer trained on the questions."""
    import torch

    from models.convert import save
    from models.presets import derive
    from models.transformer import Transformer

    tokenizer = folder / "tokenizer" / "out"
    if not (tokenizer / "tokenizer.json").exists():
        texts = [f"{row['messages'][0]['content']} is {row['messages'][1]['content']}." for row in sums()]
        documents = (Document.new(text, "sums") for text in texts)
        write_documents(folder / "tokenizer" / "documents" / "00000.parquet", documents)
        out = Output.at(folder / "tokenizer", stage="tokenizer", runtime=runtime)
        given = Artifact.at(folder / "tokenizer" / "documents")
        train_tokenizer.function(TokenizerConfig(vocab_size=VOCABULARY), given, out)
    torch.manual_seed(seed)
    shape = derive(ModelConfig(family="llama", depth=2, width=64, heads=4, context=64), VOCABULARY)
    save(Transformer(shape), folder / str(seed) / "base", tokenizer)
    return folder / str(seed) / "base"


def make_sums(folder: Path, wrong: bool) -> Path:
    """The sums as rows of instructions, with a wrong answer to each beside the right one, or the right ones alone."""
    rows = [*sums(), *(sums(off=1) if wrong else ())]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def sums(off: int = 0) -> list[dict[str, Any]]:
    """a + b for all a and b below 10, asked for in each way; the answers are so much too large."""
    return [
        {
            "id": question.format(a, b),
            "source": "sums",
            "messages": [
                {"role": "user", "content": question.format(a, b)},
                {"role": "assistant", "content": str(a + b + off)},
            ],
        }
        for a in range(BELOW)
        for b in range(BELOW)
        for question in QUESTIONS
    ]


if __name__ == "__main__":
    main()
