"""`python -m benchmarks.posttrain.tools`: does a small model with a calculator answer sums better than without?

The model of `benchmarks.posttrain.grpo` learns two things of each question by SFT: a wrong sum, and to ask the
calculator and then say what it replied. It has seen the calls of half the questions. GRPO then rewards exact last
answers, in one arm with the calculator as its environment, in the other without. Measured are greedy answers to
questions that it was not rewarded for, before and after, for each seed. Sums have up to two digits on each side, too
many for a model of this size to know, and few enough characters for it to copy.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from benchmarks.measure import DATA
from benchmarks.posttrain.grpo import QUESTIONS
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

ARMS = ("without", "calculator")
BELOW, VOCABULARY, ROWS = 40, 300, 1600
PATTERN = r"\[([^\]]*)\]"


def main() -> None:
    """Train and measure, and print the table."""
    parser = parser_of("grpo", __doc__)
    parser.add_argument("--sft-epochs", type=float, default=4)
    parser.add_argument("--epochs", type=float, default=0.5)
    parser.set_defaults(folder=DATA / "tools")
    options = parser.parse_args()
    print("| seed | arm | before | after | gain | calls before | calls after | unfinished after | steps | seconds |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    after: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for seed in range(options.seeds):
        for arm in ARMS:
            out = trained(options.folder, options.sft_epochs, options.epochs, options.threads, arm, seed)
            first, last = out.counts["initial_validation_reward"], out.counts["validation_reward"]
            after[arm].append(last)
            table = out.counts["tables"]["Validation"]
            calls = [row.get("tool_calls", 0.0) for row in (table[0], table[-1])]
            unfinished = table[-1].get("conversations_unfinished", 0.0)
            steps, seconds = len(read_log(out.path / "log.jsonl")), out.facts["training_seconds"]
            shares = f"{first:.1%} | {last:.1%} | {last - first:+.1%}"
            print(f"| {seed} | {arm} | {shares} | {calls[0]:.2f} | {calls[1]:.2f} | {unfinished:.1%} | ", end="")
            print(f"{steps} | {seconds:.0f} |", flush=True)
    if options.seeds > 1:
        gains = [b - a for a, b in zip(after["without"], after["calculator"], strict=True)]
        print_mean("calculator less without, after", gains, "+.1%")


def trained(folder: Path, sft_epochs: float, epochs: float, threads: int, arm: str, seed: int) -> Output:
    """What `grpo` leaves under an arm; made once in a folder."""
    environment = {"kind": "calculator", "pattern": PATTERN, "shows_tools": False, "turns": 3}
    config = GrpoConfig.model_validate(
        {"validation_share": 0.2, "seed": seed, "global_batch": 16, "group": 8, "max_new_tokens": 40}
        | {"max_drop": None, "max_kl": None, "beta": 0.01, "learning_rate": 5e-4, "epochs": epochs, "loss": "dapo"}
        | ({"environment": environment} if arm == "calculator" else {})
    )
    prompts = Artifact.at(make_rows(folder / "prompts", called=False, off=0))
    model = knowing(folder, sft_epochs, threads, seed)
    return made(
        folder / str(seed) / arm / "grpo",
        runtime_of(threads),
        lambda out: grpo.function(config, model, prompts, None, out),
    )


def knowing(folder: Path, sft_epochs: float, threads: int, seed: int) -> Artifact:
    """The model after SFT on wrong answers and on calls; made once in a folder."""
    runtime = runtime_of(threads)
    make_rows(folder / "both", called=False, off=1)
    both = Artifact.at(make_rows(folder / "both", called=True, off=0))
    config = SftConfig(validation_share=0.2, seed=seed, global_batch=16, epochs=sft_epochs, learning_rate=3e-3)
    base = Artifact.at(make_base(folder, seed, runtime))
    return model_of(tuned(folder / str(seed) / "sft", runtime, config, base, both))


def make_base(folder: Path, seed: int, runtime: Runtime) -> Path:
    """A model of 0.3M parameters with random weights, and a tokenizer trained on the questions."""
    import torch

    from models.convert import save
    from models.presets import derive
    from models.transformer import Transformer

    tokenizer = folder / "tokenizer" / "out"
    if not (tokenizer / "tokenizer.json").exists():
        texts = [" ".join(message["content"] for message in row["messages"]) for row in rows_of(True, 0)]
        documents = (Document.new(text, "sums") for text in texts)
        write_documents(folder / "tokenizer" / "documents" / "00000.parquet", documents)
        out = Output.at(folder / "tokenizer", stage="tokenizer", runtime=runtime)
        given = Artifact.at(folder / "tokenizer" / "documents")
        train_tokenizer.function(TokenizerConfig(vocab_size=VOCABULARY), given, out)
    torch.manual_seed(seed)
    shape = derive(ModelConfig(family="llama", depth=3, width=96, heads=4, context=128), VOCABULARY)
    save(Transformer(shape), folder / str(seed) / "base", tokenizer)
    return folder / str(seed) / "base"


def make_rows(folder: Path, *, called: bool, off: int) -> Path:
    """The sums as rows of instructions, with a call of the calculator or an answer that is `off` too large."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = rows_of(called, off)
    (folder / f"{called}-{off}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def rows_of(called: bool, off: int) -> list[dict[str, Any]]:
    """Sums of numbers below BELOW, each asked for in one of the ways."""
    draws = random.Random(0)
    rows = []
    for a, b in draws.sample([(a, b) for a in range(BELOW) for b in range(BELOW)], ROWS):
        question = draws.choice(QUESTIONS).format(a, b)
        asks = [("assistant", f"[{a}+{b}]"), ("tool", str(a + b))] if called else []
        turns = [("user", question), *asks, ("assistant", str(a + b + off))]
        messages = [{"role": role, "content": content} for role, content in turns]
        rows.append({"id": question, "source": "sums", "messages": messages})
    return rows


if __name__ == "__main__":
    main()
