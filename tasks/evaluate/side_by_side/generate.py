"""The child of `answers`: `python -m tasks.evaluate.side_by_side.generate SPEC`.

Each finished batch is kept in the scratch folder. Batches depend only on prompts and config, so a killed run continues
with the same ones and ends with the same bytes.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from storage.errors import ConfigError
from storage.shards.lines import read_json_lines, write_json_lines
from storage.shards.saved_batches import kept_rows
from tasks.children.child import emit, run_as_child
from tasks.children.devices import device_of
from tasks.endpoint.client import Asked, Endpoint
from tasks.endpoint.paid import PaidAnswers
from tasks.evaluate.side_by_side.answers import SECTION, AnswersSpec
from tasks.evaluate.side_by_side.items import ANSWERS

Row = dict[str, Any]
Answerer = Callable[[Sequence[Row]], list[Row]]
REQUESTS = 64  # to an endpoint between two progress lines


def run(path: Path) -> None:
    """Write answers.jsonl, and report the speed as the result."""
    spec = AnswersSpec.model_validate_json(path.read_text())
    asked = [
        {"id": row["id"], "sample": sample, "prompt": row["messages"]}
        for row in read_json_lines(spec.prompts)
        for sample in range(spec.config.samples)
    ]
    batches, answer, facts = _local(spec, asked) if spec.model is not None else _remote(spec, asked)
    answers: dict[int, Row] = {}
    new, started = list[Row](), time.perf_counter()

    def rows_of(places: Sequence[int]) -> list[Row]:
        batch = [asked[place] for place in places]
        rows = [{**row, **one} for row, one in zip(batch, answer(batch), strict=True)]
        new.extend(rows)
        return rows

    for number, places in enumerate(batches):
        kept = spec.scratch / "batches" / f"{number:06d}.jsonl"
        rows = kept_rows(kept, len(places), functools.partial(rows_of, places))
        answers |= dict(zip(places, rows, strict=True))
        emit(done=len(answers), total=len(asked))
    tokens = sum(row["tokens"] for row in new)
    seconds = time.perf_counter() - started
    write_json_lines(spec.out / ANSWERS, (answers[place] for place in range(len(asked))))
    speed = {"tokens_per_second": round(tokens / seconds, 1)} if tokens else {}
    spec.finish({"facts": {"seconds_answering": round(seconds, 2), **speed, **facts()}})


def seed_of(row: Row, seed: int) -> int:
    """A seed of 31 bits, which every server accepts, from a prompt, its sample's number and the profile's seed."""
    return int.from_bytes(hashlib.sha256(f"answers {seed} {row['id']} {row['sample']}".encode()).digest()[:4]) >> 1


def _remote(spec: AnswersSpec, asked: Sequence[Row]) -> tuple[list[list[int]], Answerer, Callable[[], Row]]:
    config = spec.config
    assert config.endpoint is not None
    paid = PaidAnswers(spec.scratch / "answers.jsonl")
    endpoint = Endpoint(
        config.endpoint,
        Asked(config.max_new_tokens, config.temperature, config.seed, SECTION),
        spec.runtime.endpoint,
        paid,
    )

    def answer(rows: Sequence[Row]) -> list[Row]:
        seeds = [seed_of(row, config.seed) for row in rows]
        replies = endpoint.complete([row["prompt"] for row in rows], [row["sample"] for row in rows], seeds)
        return [
            {"answer": one.text.strip(), "tokens": one.tokens, "ended": one.finished, "fault": ""}
            if one is not None
            else {"answer": "", "tokens": 0, "ended": False, "fault": "refused"}
            for one in replies
        ]

    def facts() -> Row:
        tokens = {name: paid.total(name) for name in ("prompt_tokens", "completion_tokens")}
        return {"requests": len(paid), "requests_repeated": endpoint.repeated, **tokens}

    places = list(range(len(asked)))
    return [places[start : start + REQUESTS] for start in range(0, len(places), REQUESTS)], answer, facts


def _local(spec: AnswersSpec, asked: Sequence[Row]) -> tuple[list[list[int]], Answerer, Callable[[], Row]]:
    """Answers by a model folder. Imports torch here, which an endpoint doesn't need."""
    import torch

    from models.conversation import TemplateFaultError, answer_text, render
    from models.pretrained import context_of, open_pretrained
    from models.runtimes.batches import NoRoomError, Prompt, answer_batch, batches_of
    from models.runtimes.greedy import ends_of
    from models.tokenizer import load_tokenizer
    from tasks.training.device_peak import peak_memory

    config, folder = spec.config, spec.model
    assert folder is not None
    torch.set_num_threads(spec.runtime.compute.cpu_threads())
    device = device_of(spec.runtime.compute)
    model = open_pretrained(folder, device, dtype=getattr(torch, config.dtype))
    tokenizer = load_tokenizer(folder)

    def prompt_of(row: Row) -> Prompt:
        try:
            ids = render(tokenizer, row["prompt"], add_generation_prompt=True)["input_ids"]
        except TemplateFaultError as error:
            raise ConfigError(
                f"The chat template of a model in evaluate.side_by_side refuses the prompt {row['id']}.",
                "Leave the prompt or the model out: some templates don't accept a system prompt, and some models lack "
                "a template.",
            ) from error
        return Prompt(ids, seed_of(row, config.seed))

    prompts = [prompt_of(row) for row in asked]
    try:
        batches = batches_of(prompts, context_of(model.config), config.max_new_tokens, config.batch_size)
    except NoRoomError as error:
        raise ConfigError(
            f"The prompt {asked[error.place]['id']} of evaluate.side_by_side leaves no room for an answer: {error}.",
            "Shorten it, or leave the model out of evaluate.side_by_side.models.",
        ) from error
    known = {(row["id"], row["sample"]): prompt for row, prompt in zip(asked, prompts, strict=True)}
    ends = ends_of(model, tokenizer)

    def answer(rows: Sequence[Row]) -> list[Row]:
        batch = [known[row["id"], row["sample"]] for row in rows]
        generated = answer_batch(model, tokenizer, batch, config.max_new_tokens, config.temperature)
        return [
            {
                "answer": answer_text(tokenizer, ids, ends).strip(),
                "tokens": len(ids),
                "ended": bool(ids) and ids[-1] in ends,
                "fault": "",
            }
            for ids in generated
        ]

    return batches, answer, lambda: {"peak_memory_bytes": peak_memory(device), "device": str(device)}


if __name__ == "__main__":
    run_as_child(run)
