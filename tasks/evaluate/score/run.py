"""The child of `score`: `python -m tasks.evaluate.score.run SPEC` measures one model in some benchmarks."""

from __future__ import annotations

import difflib
import gc
import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from models.kernels.attention import for_any_shape
from storage.errors import ConfigError
from storage.shards.lines import write_json_lines
from tasks.children.child import emit, run_as_child
from tasks.children.devices import device_of
from tasks.children.spec import ChildSpec
from tasks.evaluate.other_models.hosted_model import endpoint_in
from tasks.evaluate.score.config import ScoreConfig
from tasks.evaluate.score.examples import cut_prompts, examples_of_others
from tasks.evaluate.score.local import DATASET, questions_of, write_task
from tasks.evaluate.score.open_model import has_template, open_model
from tasks.evaluate.score.result import clustered, command_of, items_of, score_of
from tasks.harness.code import sampling
from tasks.harness.data import Load, saved, serving
from tasks.harness.definitions import manager_of
from tasks.harness.environment import undescribed
from tasks.harness.prepare import ABOUT, DATA, DEFINITION, what_code_needs
from tasks.significance.answered import OF_TASK
from tasks.training.device_peak import peak_memory

if TYPE_CHECKING:
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

SCORE = "score.json"
OF_THE_HARNESS = ("until", "max_gen_toks")  # arguments of a generation
RESAMPLES = 1000  # of the bootstrap by which the harness estimates errors without a formula


class Job(ChildSpec):
    """One benchmark."""

    config: ScoreConfig
    task: Path  # a file of questions, or the folder of a task of the harness

    @property
    def definition(self) -> Path | None:
        """The folder that defines the task, if it isn't the harness's own."""
        folder = self.task / DEFINITION
        return folder if folder.is_dir() else None


class ScoreSpec(ChildSpec):
    """The child's settings, which the stage writes as JSON."""

    model: Path
    jobs: list[Job]


@for_any_shape()
def run(path: Path) -> None:
    """Write score.json and items.jsonl into each job's scratch folder, unless they are there already."""
    spec = ScoreSpec.model_validate_json(path.read_text())
    torch.set_num_threads(spec.runtime.compute.cpu_threads())
    device = device_of(spec.runtime.compute)
    for job in spec.jobs:
        check_generation(job.config)
    opened: dict[tuple[str, int, int, Path | None], LM] = {}
    hosted = endpoint_in(spec.model) is not None
    for number, job in enumerate(spec.jobs):
        emit(done=number, total=len(spec.jobs), note=job.config.task)
        if (job.scratch / SCORE).exists():  # measured before the run was killed
            continue
        # An endpoint's answers to a benchmark are kept in that benchmark's scratch folder
        key = (job.config.dtype, job.config.batch_size, job.config.seed, job.scratch if hosted else None)
        if key not in opened:
            opened.clear()
            gc.collect()
            opened[key] = open_model(spec.model, job.config, job.runtime, device, job.scratch)
        score = _measure(job, opened[key])
        written = job.scratch / f"{SCORE}.part"
        written.write_text(json.dumps(score, indent=2) + "\n")
        written.replace(job.scratch / SCORE)
    spec.finish({"peak_memory_bytes": peak_memory(device), "device": str(device)})


def _measure(job: Job, lm: LM) -> dict[str, Any]:
    """The score of one benchmark, with the number of questions that were left out as `too_long`, had examples
    `replaced` or a prompt `cut`, and the `faults` of an endpoint's answers by kind."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    config = job.config
    manager, names, load, left_out = _task(job, lm)
    if config.chat and not has_template(lm):
        raise ConfigError(
            f"{config.task} is asked through the chat template, which the model lacks.", "Set chat: false."
        )
    with (
        serving(load),
        undescribed(),
        _code(job),
        sampling(manager, config.samples, config.k),
        examples_of_others(config.shots) as drawn,
    ):
        measured: Any = simple_evaluate(
            model=lm,
            tasks=names,
            task_manager=manager,
            num_fewshot=config.shots,
            limit=config.limit,
            apply_chat_template=config.chat,
            fewshot_as_multiturn=config.chat,
            gen_kwargs=config.generation or None,
            bootstrap_iters=RESAMPLES,
            fewshot_random_seed=config.seed,
            torch_random_seed=config.seed,
            numpy_random_seed=config.seed,
            confirm_run_unsafe_code=True,
        )
    named, sampled = job.task.is_file(), config.samples is not None
    items = items_of(config.task, measured, named=named, cluster=config.cluster, sampled=sampled)
    write_json_lines(job.scratch / OF_TASK, items)
    score = score_of(config.task, measured, items)
    if config.cluster:
        score["metrics"] = clustered(score["metrics"], items)
    command = command_of(config, names) if isinstance(lm, HFLM) else None  # the harness can't run the other kinds
    remarks = {"replaced": drawn.replaced, "cut": cut_prompts(lm, measured), "faults": getattr(lm, "faults", {})}
    return {**score, "too_long": left_out, **remarks, "command": command}


def check_generation(config: ScoreConfig) -> None:
    """Raises ConfigError, before any work, for an argument that neither the harness nor transformers knows."""
    from transformers import GenerationConfig

    known = [*OF_THE_HARNESS, *GenerationConfig().to_dict()]
    for name in config.generation:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            raise ConfigError(
                f"{config.task}: {name} isn't an argument of generation.",
                f"Did you mean {' or '.join(near)}?" if near else "Correct `generation` of the task.",
            )


def _code(job: Job) -> AbstractContextManager[None]:
    """The context that code of a task of the harness needs. A file of questions has no code."""
    if not job.task.is_dir():
        return nullcontext()
    return what_code_needs(job.config.task, job.task, job.definition, job.config.sandbox)


def _task(job: Job, lm: Any) -> tuple[TaskManager, list[Any], Load, int]:
    """The harness's inputs: a manager that knows the task, its names, its data, and the number of questions that don't
    fit."""
    from datasets import Dataset, DatasetDict
    from lm_eval.tasks import TaskManager

    if job.task.is_dir():
        about = json.loads((job.task / ABOUT).read_text(encoding="utf-8"))
        manager = manager_of(job.config.task, job.definition)
        return manager, about["only"] or [job.config.task], saved(job.task / DATA), 0
    rows, left_out = questions_of(
        job.task, job.config.limit, lambda choice: len(lm.tokenizer.encode(choice)) < lm.max_length
    )
    write_task(job.config.task, job.scratch / "definition")
    manager = TaskManager(include_path=str(job.scratch / "definition"), include_defaults=False)
    data = DatasetDict({"test": Dataset.from_list(rows)})

    def load(path: str, name: str | None) -> Any:
        assert (path, name) == (DATASET, job.config.task)
        return data

    return manager, [job.config.task], load, left_out


if __name__ == "__main__":
    run_as_child(run)
