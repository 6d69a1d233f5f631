"""`python -m benchmarks.posttrain.grpo`: does GRPO raise the share of right answers, and how far does the model go
for it?

A small model learns sums of two digits by SFT, from a right and a wrong answer to each question, so that it knows both
and prefers neither. GRPO then rewards exact answers to the questions of its training. Measured are greedy answers to
questions that it was not rewarded for, before and after, for each seed, and the 95 % interval of the mean gain
(Student's t). The sums are generated, each asked for in four ways, and a hash of the question holds a fifth of them out
of GRPO, and of SFT too: a seed decides first weights, orders and samples, never the data.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.measure import DATA
from benchmarks.posttrain.seeds import model_of, parser_of, print_mean, runtime_of, tuned
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
BELOW = 10
VOCABULARY = 300


def main() -> None:
    """Train and measure, and print the table."""
    options = asked("grpo", __doc__, epochs=6, beta=0.04, learning_rate=5e-4)
    print("| seed | before | after | gain | largest KL of a step | KL of the last step | steps |")
    print("|---|---|---|---|---|---|---|")
    gains = []
    for seed in range(options.seeds):
        before, after, kl = trained(options, seed)
        gains.append(after - before)
        shares = f"{before:.1%} | {after:.1%} | {after - before:+.1%}"
        print(f"| {seed} | {shares} | {max(kl):.3f} | {kl[-1]:.3f} | {len(kl)} |", flush=True)
    print_mean("mean gain", gains, "+.1%")


def asked(method: str, about: str | None, *, epochs: float, beta: float, learning_rate: float) -> argparse.Namespace:
    """What the command of a method was given, with these defaults."""
    parser = parser_of(method, about)
    parser.add_argument("--sft-epochs", type=float, default=8)
    parser.add_argument("--epochs", type=float, default=epochs, help=f"of {method.upper()} over its prompts")
    parser.add_argument("--beta", type=float, default=beta)
    parser.add_argument("--learning-rate", type=float, default=learning_rate)
    parser.set_defaults(folder=DATA / "grpo")  # PPO's models are those of GRPO
    return parser.parse_args()


def trained(options: argparse.Namespace, seed: int) -> tuple[float, float, list[float]]:
    """The share of right greedy answers to held-out prompts before and after GRPO, and the KL divergence of each step,
    in nats a token."""
    out = Output.at(options.folder / str(seed) / "grpo", stage="grpo", runtime=runtime_of(options.threads))
    config = GrpoConfig(
        validation_share=0.2,
        seed=seed,
        global_batch=32,
        epochs=options.epochs,
        group=8,
        max_new_tokens=4,
        learning_rate=options.learning_rate,
        beta=options.beta,
    )
    right = Artifact.at(make_sums(options.folder / "right", wrong=False))
    grpo.function(config, knowing(options.folder, options.sft_epochs, options.threads, seed), right, None, out)
    kl = [row["kl"] for row in read_log(out.path / "log.jsonl")]
    return out.counts["initial_validation_reward"], out.counts["validation_reward"], kl


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
        made = Output.at(folder / "tokenizer", stage="tokenizer", runtime=runtime)
        given = Artifact.at(folder / "tokenizer" / "documents")
        train_tokenizer.function(TokenizerConfig(vocab_size=VOCABULARY), given, made)
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
