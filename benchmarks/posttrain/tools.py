"""`python -m benchmarks.posttrain.tools`: does a model with a calculator answer sums better than without?

Each arm learns its own way by SFT from the same questions: to say the sum, or to ask the calculator for it and then say
what it replied. GRPO then rewards exact last answers, with the calculator as its environment or without. Measured are
greedy answers to questions of which neither has seen the answer, before and after GRPO, for each seed. The model has
0.3M parameters and random weights, or is the one in `--model`, of any size, which learns by an adapter.
"""

from __future__ import annotations

import argparse
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
VOCABULARY = 300
PATTERN = r"\[([^\]]*)\]"


def main() -> None:
    """Train and measure, and print the table."""
    parser = parser_of("grpo", __doc__)
    parser.add_argument("--sft-epochs", type=float, default=4)
    parser.add_argument("--epochs", type=float, default=0.5, help="of GRPO over its prompts")
    parser.add_argument("--model", type=Path, help="a folder of transformers, with its tokenizer and chat template")
    parser.add_argument("--below", type=int, default=40, help="both numbers of a sum are below this one")
    parser.add_argument("--rows", type=int, default=1600, help="questions, of which a fifth is held out")
    parser.set_defaults(folder=DATA / "tools")
    options = parser.parse_args()
    print("| seed | arm | before | after | gain | calls before | calls after | unfinished after | steps | seconds |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    after: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for seed in range(options.seeds):
        for arm in ARMS:
            out = trained(options, arm, seed)
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


def trained(options: argparse.Namespace, arm: str, seed: int) -> Output:
    """What `grpo` leaves under an arm; made once in a folder."""
    folder: Path = options.folder
    environment = {"kind": "calculator", "pattern": PATTERN, "shows_tools": False, "turns": 3}
    config = GrpoConfig.model_validate(
        {"validation_share": 0.2, "seed": seed, "global_batch": 16, "group": 8, "max_new_tokens": 40}
        | {"max_drop": None, "max_kl": None, "beta": 0.01, "learning_rate": 5e-4, "epochs": options.epochs}
        | {"loss": "dapo", "adapter": adapter_of(options)}
        | ({"environment": environment} if arm == "calculator" else {})
    )
    prompts = Artifact.at(make_rows(options, "without"))
    model = knowing(options, arm, seed)
    return made(
        folder / str(seed) / arm / "grpo",
        runtime_of(options.threads, micro_batch=8, packing=False),
        lambda out: grpo.function(config, model, prompts, None, out),
    )


def knowing(options: argparse.Namespace, arm: str, seed: int) -> Artifact:
    """The model after SFT on an arm's answers; made once in a folder."""
    folder, runtime = options.folder / str(seed), runtime_of(options.threads, micro_batch=8, packing=False)
    config = SftConfig.model_validate(
        {"validation_share": 0.2, "seed": seed, "global_batch": 16, "epochs": options.sft_epochs}
        | {"learning_rate": 1e-3 if options.model else 3e-3, "adapter": adapter_of(options)}
    )
    base = Artifact.at(options.model or make_base(options, seed, runtime))
    rows = Artifact.at(make_rows(options, arm))
    return model_of(tuned(folder / arm / "sft", runtime, config, base, rows))


def adapter_of(options: argparse.Namespace) -> dict[str, int] | None:
    """That of a given model."""
    return {"rank": 16, "alpha": 32} if options.model else None


def make_base(options: argparse.Namespace, seed: int, runtime: Runtime) -> Path:
    """A model of 0.3M parameters with random weights, and a tokenizer trained on the questions."""
    import torch

    from models.convert import save
    from models.presets import derive
    from models.transformer import Transformer

    folder: Path = options.folder
    tokenizer = folder / "tokenizer" / "out"
    if not (tokenizer / "tokenizer.json").exists():
        texts = [" ".join(message["content"] for message in row["messages"]) for row in rows_of(options, "calculator")]
        documents = (Document.new(text, "sums") for text in texts)
        write_documents(folder / "tokenizer" / "documents" / "00000.parquet", documents)
        out = Output.at(folder / "tokenizer", stage="tokenizer", runtime=runtime)
        given = Artifact.at(folder / "tokenizer" / "documents")
        train_tokenizer.function(TokenizerConfig(vocab_size=VOCABULARY), given, out)
    torch.manual_seed(seed)
    shape = derive(ModelConfig(family="llama", depth=3, width=96, heads=4, context=128), VOCABULARY)
    save(Transformer(shape), folder / str(seed) / "base", tokenizer)
    return folder / str(seed) / "base"


def make_rows(options: argparse.Namespace, arm: str) -> Path:
    """The sums as rows of instructions, answered as an arm does."""
    folder: Path = options.folder / "rows" / arm
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of(options, arm)))
    return folder


def rows_of(options: argparse.Namespace, arm: str) -> list[dict[str, Any]]:
    """Different sums, each asked for in one of the ways."""
    draws = random.Random(0)
    rows = []
    for number in draws.sample(range(options.below**2), options.rows):
        a, b = divmod(number, options.below)
        question = draws.choice(QUESTIONS).format(a, b)
        asks = [("assistant", f"[{a}+{b}]"), ("tool", str(a + b))] if arm == "calculator" else []
        turns = [("user", question), *asks, ("assistant", str(a + b))]
        messages = [{"role": role, "content": content} for role, content in turns]
        rows.append({"id": question, "source": "sums", "messages": messages})
    return rows


if __name__ == "__main__":
    main()
