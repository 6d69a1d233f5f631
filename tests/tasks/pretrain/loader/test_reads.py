"""The steps that read a document are those whose batches have its tokens, however samples are made and shared."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.shards.token_sources import write_sources
from storage.shards.token_stream import Ranges
from storage.shards.tokens import open_tokens, write_tokens
from tasks.pretrain import PretrainConfig
from tasks.pretrain.fim_tokens import FimTokens
from tasks.pretrain.healing.skipped_batches import BatchSchedule
from tasks.pretrain.loader import open_loader
from tasks.pretrain.loader.permutation import permute
from tests.tasks.pretrain.tiny_training import CONFIG

DIGEST, EOS, CONTEXT = "ab" * 32, 0, 16
OWN = range(20, 26)  # ids of the one document's tokens, which no other has
LENGTHS = {0: [9, 30, 5, 17, 40, 3, 8], 1: [60, 12, 1, 25, 7, 33, 4]}  # of the documents of two shards, with EOS
MINE = ((0, 3), (1, 0), (1, 2))  # one that windows cut, a long one, and an empty one
SOURCES = ["a", "a", "b", "b", "a", "c", "b"]
MIXED: dict[str, Any] = {"mixture": {"a": 0.2, "b": 0.8}}
CHANGED = MIXED | {"curriculum": [{"from_step": 9, "mixture": {"b": 0.1, "c": 0.3}}]}
FIM = {"fim_rate": 0.6}
CASES: dict[str, dict[str, Any]] = {
    "stream": {},
    "a short run": {"steps": 2},
    "mixture": MIXED,
    "curriculum": CHANGED,
    "packed": {"packing": "best_fit"},
    "packed, long first": {"packing": "long_first"},
    "isolated": {"isolate_documents": True},
    "fim": FIM,
    "growing batch and context": {"batch_warmup_steps": 6, "batch_warmup_parts": 2, "context_warmup_steps": 9}
    | {"context_warmup_parts": 4},
    "all of it": CHANGED | FIM | {"packing": "best_fit", "isolate_documents": True, "context_warmup_steps": 5}
    | {"context_warmup_parts": 2},
}  # fmt: skip


def shards(folder: Path) -> tuple[list[Path], dict[int, Ranges]]:
    """Two shards, and where the documents' tokens are in them, without EOS."""
    paths, ranges = [], {}
    for shard, lengths in LENGTHS.items():
        of_documents = []
        for place, length in enumerate(lengths):
            own = [OWN[n % len(OWN)] for n in range(length - 1)]
            others = [1 + (shard + place + n) % 9 for n in range(length - 1)]
            of_documents.append(np.array([*(own if (shard, place) in MINE else others), EOS]))
        paths.append(folder / f"{shard:05d}.tokens")
        write_tokens(paths[-1], of_documents, vocab_size=32, eos_id=EOS, tokenizer_digest=DIGEST, text_bytes=1)
        write_sources(paths[-1].with_suffix(".sources"), SOURCES)
        starts = open_tokens(paths[-1]).starts.astype(np.int64)
        mine = [place for of, place in MINE if of == shard and lengths[place] > 1]
        ranges[shard] = Ranges(starts[mine], starts[[place + 1 for place in mine]] - 1)
    return paths, ranges


@pytest.mark.parametrize("skipped", [(), ((3, 4), (7, 7))], ids=["nothing skipped", "skipped"])
@pytest.mark.parametrize("name", CASES)
def test_steps_that_read_a_document_are_found_without_reading_the_rest(
    name: str, skipped: tuple[tuple[int, int], ...], tmp_path: Path
) -> None:
    choices = {"global_batch": 4, "steps": 20, **CASES[name]}
    base = {key: value for key, value in CONFIG.model_dump().items() if key not in ("global_batch", "steps", "tokens")}
    config = PretrainConfig.model_validate(base | choices)
    paths, ranges = shards(tmp_path)

    def opened() -> Any:
        return open_loader(paths, config, context=CONTEXT, tokenizer_digest=DIGEST, fim_tokens=FimTokens(10, 11, 12))

    assert config.steps
    schedule = BatchSchedule(skipped=skipped)
    batches = np.array([schedule.batch(step) for step in range(1, config.steps + 1)])
    predicted: Counter[int] = Counter()
    read = set()
    reads = list(opened().reads(ranges, batches))
    for one in reads:
        read.add(one.step)
        predicted[one.step] += one.predicted
    loader = opened()
    for ranks, size in ((1, 4), (2, 1)):
        truth: Counter[int] = Counter()
        seen = set()
        for step, number in enumerate(batches.tolist(), 1):
            for rank in range(ranks):
                for batch in loader.micro_batches(step, rank=rank, ranks=ranks, size=size, number=number):
                    truth[step] += int(np.isin(batch.targets, OWN).sum())
                    if np.isin(batch.ids, OWN).any() or truth[step]:
                        seen.add(step)
        assert read == seen, "read by a step"
        assert +predicted == +truth, "tokens of each step"
    assert len(read) > 0
    if config.steps > 2:
        assert max(one.epoch for one in reads) > 0, "the case repeats text"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_the_inverse_order_takes_an_element_to_its_position(size: int) -> None:
    places = np.arange(size, dtype=np.uint64)
    assert (permute(permute(places, size, "key"), size, "key", inverse=True) == places).all()
