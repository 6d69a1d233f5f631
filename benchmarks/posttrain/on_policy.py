"""`python -m benchmarks.posttrain.on_policy`: does a student learn more from its teacher on answers of its own?

A teacher learns to add four digits by SFT, with the total after each of them as the answer (`4+9+2+8`: `13 15 23`). A
smaller student learns the same for less long. Then each arm trains that student by `distill`, on the same prompts, in
as many steps of as many rows at the same rate. `off` learns on the rows' answers, `on` on its own, by each divergence,
and `half` on its own for half of the rows. Measured are greedy answers to questions that a hash of their ids holds out
of all trainings, and the tokens that an arm learned on. The teacher is the same for all seeds. A seed decides the
student's weights, orders and samples, never the data. Intervals are 95 % of Student's t.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from benchmarks.posttrain.seeds import made, model_of, parser_of, print_mean, right_share, rows_of, runtime_of, tuned
from models.config import ModelConfig
from storage.artifact import Artifact
from storage.shards.documents import Document, write_documents
from tasks.posttrain.methods.distill import DistillConfig, distill
from tasks.posttrain.methods.sft import SftConfig
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tasks.tokenizer import TokenizerConfig, train_tokenizer
from tasks.training.logs import read_log

ARMS: dict[str, dict[str, Any]] = {
    "off forward": {"divergence": "forward"},
    "off reverse": {"divergence": "reverse"},
    "off jsd": {"divergence": "jsd"},
    "on forward": {"divergence": "forward", "on_policy_share": 1},
    "on reverse": {"divergence": "reverse", "on_policy_share": 1},
    "on jsd": {"divergence": "jsd", "on_policy_share": 1},
    "half reverse": {"divergence": "reverse", "on_policy_share": 0.5},
}
HELD_OUT = 0.2
LONGEST = 12  # tokens of an answer
VOCABULARY = 280


def main() -> None:
    """Train and measure, and print the tables."""
    options = _options()
    runtime, rows = runtime_of(options.threads), Artifact.at(_make_rows(options.folder / "rows", options.rows))
    print(f"| seed | teacher | student | {' | '.join(options.arms)} |\n|{'---|' * (len(options.arms) + 3)}")
    right: dict[str, list[float]] = {arm: [] for arm in options.arms}
    tokens: dict[str, int] = {}
    teacher = _model(options, options.folder / "teacher", rows, runtime, 0, options.teacher_epochs, depth=3, width=128)
    reached = right_share(teacher, rows, HELD_OUT, LONGEST)
    for seed in range(options.seeds):
        folder = options.folder / str(seed)
        student = _model(options, folder / "student", rows, runtime, seed, options.student_epochs, depth=2, width=64)
        shares = [reached, right_share(student, rows, HELD_OUT, LONGEST)]
        for arm in options.arms:
            out = _distilled(options, folder / arm.replace(" ", "-"), arm, student, teacher, rows, seed)
            right[arm].append(right_share(model_of(out), rows, HELD_OUT, LONGEST))
            tokens[arm] = tokens.get(arm, 0) + _tokens(out, rows)
        print(f"| {seed} | {' | '.join(f'{s:.1%}' for s in [*shares, *(right[a][-1] for a in right)])} |", flush=True)
    for arm in options.arms if options.seeds > 1 else ():
        print_mean(f"{arm}, {tokens[arm] / options.seeds:,.0f} tokens:", right[arm], ".1%")
    for arm in options.arms[1:] if options.seeds > 1 else ():
        less = [mine - theirs for mine, theirs in zip(right[arm], right[options.arms[0]], strict=True)]
        print_mean(f"{arm}, less {options.arms[0]}:", less, "+.1%")


def _options() -> argparse.Namespace:
    parser = parser_of("on_policy", __doc__)
    parser.add_argument("--rows", type=int, default=2000, help="questions, held-out ones included")
    parser.add_argument("--teacher-epochs", type=float, default=12)
    parser.add_argument("--student-epochs", type=float, default=8)
    parser.add_argument("--epochs", type=float, default=4, help="of the distillation")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="of the distillation")
    parser.add_argument("--arms", nargs="+", choices=[*ARMS], default=[*ARMS])
    return parser.parse_args()


def _make_rows(folder: Path, number: int) -> Path:
    """Questions with their running totals, the same for every seed."""
    folder.mkdir(parents=True, exist_ok=True)
    draws = random.Random(0)
    questions = dict.fromkeys(tuple(draws.choices(range(10), k=4)) for _ in range(number))
    with (folder / "all.jsonl").open("w") as file:
        for digits in questions:
            totals = [sum(digits[: count + 1]) for count in range(1, len(digits))]
            asked, said = "+".join(map(str, digits)), " ".join(map(str, totals))
            messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
            file.write(json.dumps({"id": asked, "source": "sums", "messages": messages}) + "\n")
    return folder


def _model(
    options: argparse.Namespace, folder: Path, rows: Artifact, runtime: Runtime, seed: int, epochs: float, **shape: int
) -> Artifact:
    """A model of a shape after SFT on the rows; made once in a folder."""
    import torch

    from models.convert import save
    from models.presets import derive
    from models.transformer import Transformer

    if not (folder / "base" / "config.json").exists():
        tokenizer = _tokenizer(options.folder, rows, runtime)
        torch.manual_seed(seed)
        model = ModelConfig.model_validate({"family": "llama", "heads": 4, "context": 64, **shape})
        save(Transformer(derive(model, VOCABULARY)), folder / "base", tokenizer)
    config = SftConfig(validation_share=HELD_OUT, seed=seed, epochs=epochs, global_batch=32, learning_rate=3e-3)
    return model_of(tuned(folder / "sft", runtime, config, Artifact.at(folder / "base"), rows))


def _tokenizer(folder: Path, rows: Artifact, runtime: Runtime) -> Path:
    """A tokenizer of nearly single bytes, so that an answer has many tokens; made once."""
    out = Output.at(folder / "tokenizer", stage="tokenizer", runtime=runtime)
    if not (out.path / "tokenizer.json").exists():
        texts = (message["content"] for row in rows_of(rows) for message in row["messages"])
        documents = folder / "tokenizer" / "documents"
        write_documents(documents / "00000.parquet", (Document.new(text, "sums") for text in texts))
        train_tokenizer.function(TokenizerConfig(vocab_size=VOCABULARY), Artifact.at(documents), out)
    return out.path


def _distilled(
    options: argparse.Namespace, folder: Path, arm: str, student: Artifact, teacher: Artifact, rows: Artifact, seed: int
) -> Output:
    shared = {"validation_share": HELD_OUT, "seed": seed, "global_batch": 32, "learning_rate": options.learning_rate}
    room = {"max_new_tokens": LONGEST} if "on_policy_share" in ARMS[arm] else {}
    config = DistillConfig.model_validate({**shared, "epochs": options.epochs, **ARMS[arm], **room})
    runtime = runtime_of(options.threads)
    return made(folder / "distill", runtime, lambda out: distill.function(config, student, rows, teacher, out))


def _tokens(out: Output, rows: Artifact) -> int:
    """The tokens that an arm learned on: those of a row's answer with its end, unless the log says what was sampled."""
    from models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(out.path / "model")
    answers = [row["messages"][-1]["content"] for row in rows_of(rows)]
    given = sum(len(tokenizer.encode(answer, add_special_tokens=False)) + 1 for answer in answers) / len(answers)
    log = read_log(out.path / "log.jsonl")
    return round(32 * sum(float(row.get("answer_tokens", given)) for row in log))


if __name__ == "__main__":
    main()
