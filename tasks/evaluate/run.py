"""The child of `evaluate`: `python -m tasks.evaluate.run SPEC` measures the models one by one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from models.kernels.attention import for_any_shape
from models.likelihood import mean_loss
from models.pretrained import context_of, load_config, load_pretrained
from models.tokenizer import load_tokenizer
from storage.shards.lines import read_json_lines
from storage.shards.token_stream import TokenStream
from tasks.children.child import emit, run_as_child
from tasks.children.spec import ChildSpec
from tasks.evaluate.answers import answers
from tasks.evaluate.benchmarks import PREFIX, write_questions, write_tasks
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.subsets import Answer, Dirty, check_asked, find_dirty, split
from tasks.training.bits_per_byte import likelihood
from tasks.training.peak import peak_memory

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

SEED = 0  # for the harness; multiple choice draws no random number
LONGEST_WINDOW = 4096  # tokens, of bits per byte: some contexts are longer than the text


class EvaluateSpec(ChildSpec):
    """Written as JSON by the stage."""

    config: EvaluateConfig
    models: dict[str, Path]
    tokenizer_digest: str
    validation: list[Path]
    benchmarks: list[Path]
    contamination: Path | None  # nothing is known of it where the profile has no filter


@for_any_shape()
def run(path: Path) -> None:
    """Scores of every model in `spec.models`, written as JSON to `spec.result`."""
    spec = EvaluateSpec.model_validate_json(path.read_text())
    torch.set_num_threads(spec.runtime.compute.threads)
    cuda = spec.runtime.compute.device == "cuda" or (
        spec.runtime.compute.device == "auto" and torch.cuda.is_available()
    )
    device = "cuda" if cuda else "cpu"
    about, prompts = _questions(spec), spec.config.prompts
    dirty = _dirty(spec)
    scores: dict[str, Any] = {}
    for number, (name, folder) in enumerate(spec.models.items()):
        emit(done=number, note=name)
        model, tokenizer = load_pretrained(folder).to(device).eval(), load_tokenizer(folder)
        scores[name] = {
            "bits_per_byte": _bits_per_byte(spec, model, tokenizer),
            "tasks": _benchmarks(spec, model, tokenizer, dirty),
            "answers": answers(model, tokenizer, prompts, spec.config.answer_tokens) if prompts else [],
        }
    facts = {"peak_memory_bytes": peak_memory(torch.device(device))}
    spec.finish({"models": scores, "benchmarks": about, "facts": facts})


def _questions(spec: EvaluateSpec) -> dict[str, dict[str, float]]:
    """Write the questions that every model is asked: those whose choices fit into the smallest context."""
    tokenizer = load_tokenizer(next(iter(spec.models.values())))  # the same for all, as the stage has checked
    context = min(context_of(load_config(folder)) for folder in spec.models.values())
    return write_questions(
        spec.benchmarks,
        spec.scratch / "tasks",
        max_items=spec.config.max_items,
        fits=lambda choice: len(tokenizer.encode(choice)) < context,
    )


def _dirty(spec: EvaluateSpec) -> dict[str, Dirty]:
    """Which of the asked questions are dirty, for each benchmark that the filter checked."""
    dirty = find_dirty(spec.contamination, spec.config.dirty_share) if spec.contamination else {}
    for path in spec.benchmarks:
        if path.stem in dirty:
            rows = read_json_lines(spec.scratch / "tasks" / path.name)
            check_asked(path.stem, (str(row["id"]) for row in rows), dirty[path.stem])
    return dirty


def _bits_per_byte(spec: EvaluateSpec, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> float:
    begin = tokenizer.encode("")
    stream = TokenStream(spec.validation, tokenizer_digest=spec.tokenizer_digest)
    measured = likelihood(
        lambda ids_BT, targets_BT: mean_loss(model, ids_BT, targets_BT, begin),
        stream,
        context=min(context_of(model.config) - len(begin), LONGEST_WINDOW, stream.tokens - 1),
        max_tokens=spec.config.validation_tokens,
    )
    return measured.bits_per_byte


def _benchmarks(
    spec: EvaluateSpec, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, dirty: dict[str, Dirty]
) -> dict[str, dict[str, Any]]:
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    tasks = write_tasks([path.stem for path in spec.benchmarks], spec.scratch / "tasks")
    manager: TaskManager = TaskManager(include_path=str(spec.scratch / "tasks"), include_defaults=False)
    measured = simple_evaluate(
        model=HFLM(
            pretrained=model,
            tokenizer=tokenizer,
            batch_size=spec.config.batch_size,
            max_length=context_of(model.config),
        ),
        tasks=tasks,
        task_manager=manager,
        log_samples=True,
        random_seed=SEED,
        numpy_random_seed=SEED,
        torch_random_seed=SEED,
        fewshot_random_seed=SEED,
    )
    return {
        task.removeprefix(PREFIX): {
            "accuracy": result["acc,none"],
            "accuracy_stderr": result["acc_stderr,none"],
            "normalised_accuracy": result["acc_norm,none"],
            "normalised_accuracy_stderr": result["acc_norm_stderr,none"],
            "items": measured["n-samples"][task]["effective"],
            **split(_answers(measured["samples"][task]), dirty.get(task.removeprefix(PREFIX))),
        }
        for task, result in measured["results"].items()
    }


def _answers(samples: list[dict[str, Any]]) -> list[Answer]:
    return [
        Answer(str(sample["doc"]["id"]), sample["acc"], sample["acc_norm"], 1 / len(sample["doc"]["choices"]))
        for sample in samples
    ]


if __name__ == "__main__":
    run_as_child(run)
