"""Real rows of instructions and preferences, read end to end: every row is a pair or quarantined for a known reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.shards.documents import read_ledger
from storage.shards.lines import read_json_lines
from tasks.download import DownloadConfig, download
from tasks.posttrain.rows.labelled import labelled_of
from tasks.stage.output import Output
from tests.runtimes import runtime_of

SHARE = 0.02  # of each sample, 1.4 % and less can't be used
HELPFUL = {"empty": 4, "equal_answers": 2, "two_in_a_row": 15}
SAMPLED = {"equal_answers": 32, "two_in_a_row": 3}

# folder, file, role, rows, what of them is quarantined
SAMPLES: list[tuple[str, str, str, int, dict[str, int]]] = [
    ("sft/alpaca_1k", "data.jsonl", "instructions", 1000, {}),
    ("sft/chatterbot_en", "data.jsonl", "instructions", 2393, {"empty": 32}),
    ("sft/oasst_synth_100", "en_100_tree.jsonl", "instructions", 100, {}),
    ("sft/rasbt_instruct", "data.jsonl", "instructions", 1100, {}),
    ("sft/self_instruct_seed", "data.jsonl", "instructions", 175, {}),
    ("sft/self_instruct_user", "data.jsonl", "instructions", 252, {}),
    ("sft/tinytalks", "data.jsonl", "instructions", 301, {}),
    ("pref/rasbt_dpo", "data.jsonl", "preferences", 1100, {"equal_answers": 6}),
    ("pref/hh_rlhf_test", "harmless-base-test.jsonl.gz", "preferences", 2312, {"empty": 4, "two_in_a_row": 9}),
    ("pref/hh_rlhf_test", "helpful-base-test.jsonl.gz", "preferences", 2354, HELPFUL),
    ("pref/hh_rlhf_test", "helpful-rejection-sampled-test.jsonl.gz", "preferences", 2749, SAMPLED),
]


def read(path: Path, role: str, folder: Path) -> Output:
    (folder / "text.md").write_text("A document, as there must be one.")
    sources = [
        {"kind": "files", "name": "text", "paths": [str(folder / "text.md")]},
        {"kind": "files", "name": "sample", "paths": [str(path)], "role": role},
    ]
    config = {"sources": sources, "benchmarks": ["piqa"], "benchmark_items": 1, "max_quarantined_share": SHARE}
    out = Output.at(folder / "made", stage="download", runtime=runtime_of(workers=1))
    download.function(DownloadConfig.model_validate(config), out)
    return out


@pytest.mark.parametrize(("folder", "name", "role", "rows", "refused"), SAMPLES)
def test_every_row_of_a_sample_is_a_pair_or_quarantined(
    folder: str,
    name: str,
    role: str,
    rows: int,
    refused: dict[str, int],
    shared_data: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    out = read(shared_data(folder) / name, role, tmp_path)
    ledger = [verdict for path in out.path.glob("ledger/*") for verdict in read_ledger(path)]
    assert Counter(verdict.reason for verdict in ledger) == refused
    assert out.counts[role] + out.counts.get(f"{role}_quarantined", 0) == rows
    pairs = list(read_json_lines(out.path / role / "pairs.jsonl"))
    assert len(pairs) == out.counts[role] == rows - sum(refused.values())
    if role == "preferences":  # KTO takes both answers of each
        halves = [half for pair in pairs for half in labelled_of(pair)]
        assert Counter(half["label"] for half in halves) == {True: len(pairs), False: len(pairs)}
        assert [half["completion"] for half in halves[:2]] == [pairs[0]["chosen"], pairs[0]["rejected"]]
    for pair in pairs:
        conversation = pair["messages"] if role == "instructions" else [*pair["prompt"], *pair["chosen"]]
        assert [message["role"] for message in conversation] == ["user", "assistant"] * (len(conversation) // 2)
    if name == "en_100_tree.jsonl":
        assert Counter(len(pair["messages"]) for pair in pairs) == {2: 55, 4: 45}
