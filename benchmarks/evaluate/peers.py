"""`python -m benchmarks.evaluate.peers MODEL`: scores beside lm-evaluation-harness's own model class.

Both sides ask the same model the same questions of six kinds, by the harness's definitions, from data of an installed
package: choices after five examples, long choices, a single letter, pages, and answers in text. What differs is how the
model is run: ours in packed rows, the harness's HFLM in padded batches. Each side measures in a process of its own,
ours in the environment of the stage's child. The time of the questions counts, with what a side makes of the opened
model, not that of imports and of opening it. Told are medians of the runs, and the largest difference of a metric.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, Run, count, end_as_interrupted, environment, measure, median
from tasks.children.environment import training_environment
from tasks.evaluate.score.config import ScoreConfig
from tasks.harness.config import HarnessSource
from tasks.stage.runtime import ComputeRuntime

SIDES = ("harness", "Gristmill")
LETTERS = "ABCDEFGH"
ASKED: dict[str, dict[str, Any]] = {  # what is asked of each task
    "arc_easy": {"shots": 5},
    "hellaswag": {"shots": 0},
    "letters": {"shots": 3},
    "wikitext": {"shots": 0},
    "gsm8k": {"shots": 2, "generation": {"max_gen_toks": 32}},  # other examples for each question
    "gsm8k_cot": {"generation": {"max_gen_toks": 32}},  # eight, the same for all
}


def main() -> None:
    """Run both sides of each task, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a model folder of transformers")
    parser.add_argument("--tasks", nargs="+", choices=[*ASKED], default=[*ASKED])
    parser.add_argument("--items", type=int, default=100, help="questions of each task")
    parser.add_argument("--batch-size", type=int, default=16, help="of the harness, and of answers in text")
    parser.add_argument("--runs", type=count, default=5, help="of each side")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--side", nargs=3, help=argparse.SUPPRESS)  # side, task, folder: what a process does
    options = parser.parse_args()
    if options.side:
        side, task, folder = options.side
        print(json.dumps(_measured(options, side, task, Path(folder))))
        return
    end_as_interrupted()
    names = ["task", "side", "CPU s", "ratio", "peak MB", "largest difference of a metric"]
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    with tempfile.TemporaryDirectory() as folder:
        for task in options.tasks:
            _prepare(task, Path(folder), options.items)
            _compare(options, task, folder)


def _compare(options: argparse.Namespace, task: str, folder: str) -> None:
    asked = ["--items", str(options.items), "--batch-size", str(options.batch_size), "--threads", str(options.threads)]
    runs: dict[str, list[Run]] = {side: [] for side in SIDES}
    for _ in range(options.runs):
        for side in SIDES:
            command = [sys.executable, "-m", "benchmarks.evaluate.peers", str(options.model.resolve()), *asked]
            variables = environment(options.threads) | {"PYTHONPATH": str(ROOT.parent), "HF_HUB_OFFLINE": "1"}
            if side == "Gristmill":
                variables = training_environment(ComputeRuntime(threads=options.threads, device="cpu")) | variables
            runs[side].append(measure([*command, "--side", side, task, folder], variables))
    metrics = [runs[side][0].result["metrics"] for side in SIDES]
    apart = max(abs(value - metrics[1][name]) for name, value in metrics[0].items())
    seconds = {side: sorted(run.result["seconds"] for run in runs[side])[options.runs // 2] for side in SIDES}
    for side in SIDES:
        ratio, peak = seconds["harness"] / seconds[side], median(runs[side]).peak / 1e6
        print(f"| {task} | {side} | {seconds[side]:.2f} | {ratio:.2f} × | {peak:,.0f} | {apart:.1e} |", flush=True)


def _measured(options: argparse.Namespace, side: str, task: str, folder: Path) -> dict[str, Any]:
    """One side, one task: CPU seconds of asking it, and its metrics."""
    import torch
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    from models.pretrained import context_of, load_pretrained
    from models.tokenizer import load_tokenizer
    from tasks.evaluate.score.model import PackedModel
    from tasks.harness.data import saved, serving
    from tasks.harness.definitions import manager_of
    from tasks.harness.environment import undescribed
    from tasks.harness.prepare import DATA, DEFINITION

    torch.set_num_threads(options.threads)
    model, tokenizer = load_pretrained(options.model).eval(), load_tokenizer(options.model)
    start = time.process_time()
    lm: Any = (
        PackedModel(model, tokenizer, options.batch_size)
        if side == "Gristmill"
        else HFLM(
            pretrained=model, tokenizer=tokenizer, batch_size=options.batch_size, max_length=context_of(model.config)
        )
    )
    made = time.process_time() - start
    config = ScoreConfig(task=task, **ASKED[task])
    defined = folder / task / DEFINITION
    with serving(saved(folder / task / DATA)), undescribed():
        manager = manager_of(task, defined if defined.is_dir() else None)
        start = time.process_time()
        measured: Any = simple_evaluate(
            model=lm,
            tasks=[task],
            task_manager=manager,
            num_fewshot=config.shots,
            limit=options.items,
            gen_kwargs=config.generation or None,
            bootstrap_iters=0,
        )
        seconds = made + time.process_time() - start
    metrics = {key: value for key, value in measured["results"][task].items() if isinstance(value, float)}
    return {"seconds": seconds, "metrics": metrics}


def _prepare(task: str, folder: Path, items: int) -> None:
    """The task's data, of the installed package, as `download` prepares them."""
    from tasks.harness.prepare import prepare

    rows = list(_rows(task, items))
    path = folder / f"{task}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    own = None
    if task == "letters":
        own = folder / "definitions"
        own.mkdir()
        (own / "letters.yaml").write_text(
            "task: letters\ndataset_path: letters\noutput_type: multiple_choice\ntest_split: test\n"
            "training_split: train\n"
            "doc_to_text: '{{text}}'\ndoc_to_choice: '{{letters}}'\ndoc_to_target: right\n"
            "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]\n"
        )
    files = dict.fromkeys(("train", "validation", "test"), str(path))
    source = HarnessSource(task=task, files=files, folder=str(own) if own else None)
    prepare(source, folder / task, folder / "scratch")


def _rows(task: str, items: int) -> Iterator[dict[str, Any]]:
    from tasks.download.benchmarks import _arrow, _file

    if task == "arc_easy":
        yield from _arrow("ai2_arc/ARC-Easy/validation").to_pylist()
    elif task == "hellaswag":
        yield from _arrow("hellaswag/none/validation").slice(0, 4 * items).to_pylist()
    elif task == "letters":
        for row in _arrow("ai2_arc/ARC-Easy/validation").to_pylist():
            choices = row["choices"]["text"]
            listed = "\n".join(f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False))
            yield {
                "text": f"{row['question']}\n{listed}\nAnswer:",
                "letters": list(LETTERS[: len(choices)]),
                "right": row["choices"]["label"].index(row["answerKey"]),
            }
    elif task == "wikitext":
        for row in _arrow("boolq/none/validation").slice(0, items).to_pylist():
            yield {"page": row["passage"]}
    else:
        with gzip.open(next(_file("oe_eval_tasks/gsm8k").rglob("requests.jsonl.gz")), "rt", encoding="utf-8") as lines:
            for line in lines:
                document = json.loads(line)["doc"]
                yield {"question": document["question"], "answer": document["answer"]}


if __name__ == "__main__":
    main()
