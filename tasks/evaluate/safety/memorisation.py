"""Verbatim memorisation: how far a model continues training documents word by word, by source.

A document is extractable if the model, given its first tokens, greedily continues with exactly the next ones (Carlini
et al. 2023, "Quantifying Memorization Across Neural Language Models"). Held-out documents are the control: text that a
model repeats from them is known from elsewhere, or is boilerplate.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.evaluate.safety.config import SafetyConfig
from tasks.evaluate.safety.requests import HELD_OUT, TRAINING, Requests
from tasks.evaluate.safety.shares import DIGITS, mean, share
from tasks.evaluate.safety.training_text.matches import build, common_piece, common_prefix, find_in_shard, join
from tasks.shards import map_shards
from tasks.stage.output import Output

Row = Mapping[str, Any]
SPLITS = {"training": TRAINING, "held_out": HELD_OUT}


def measure_memorisation(
    config: SafetyConfig, requests: Requests, said: Sequence[Row], training: Sequence[Path], digest: str, out: Output
) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """The results for both splits, and a row per document of each. `recalled` is the number of tokens, from the first
    on, that continue the document exactly. `piece` is the longest piece of the true continuation that the model
    repeated, and `anywhere` the longest piece of the model's text that is anywhere in the training text."""
    assert config.memorisation is not None
    prompt, continuation = config.memorisation.prompt_tokens, config.memorisation.continuation_tokens
    rows = [row for row in said if row["part"] in SPLITS.values()]
    automaton = build([row["ids"] for row in rows])
    job = functools.partial(find_in_shard, automaton, digest)
    shards = map_shards(job, training, out, "training-text", releases_gil=True)
    anywhere = automaton.longest(join([shard.folder / "found.npy" for shard in shards]))
    items: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    for split, openings in (("training", requests.training), ("held_out", requests.held_out)):
        true = {(one.source, one.id): one.ids[prompt:] for one in openings.chosen} if openings else {}
        for row, longest in zip(rows, anywhere, strict=True):
            if row["part"] == SPLITS[split]:
                follows = true[row["source"], row["id"]]
                recalled = common_prefix(row["ids"], follows)
                items[split].append(
                    {
                        "id": f"{row['source']}/{row['id']}",
                        "cluster": None,
                        "source": row["source"],
                        "scores": {
                            "extractable": float(recalled >= continuation),
                            "recalled": float(recalled),
                            "piece": float(common_piece(row["ids"], follows)),
                            "anywhere": float(longest),
                        },
                    }
                )
    by_split = {
        split: _split(
            config, items[split], openings.long_enough if openings else {}, openings.documents if openings else {}
        )
        for split, openings in (("training", requests.training), ("held_out", requests.held_out))
    }
    return {
        "prompt_tokens": prompt,
        "continuation_tokens": continuation,
        "training_tokens": sum(shard.counts["tokens"] for shard in shards),
        **by_split,
    }, items


def _split(
    config: SafetyConfig, items: Sequence[Row], long_enough: Mapping[str, int], documents: Mapping[str, int]
) -> dict[str, Any]:
    return {
        **_measured(config, items),
        "by_source": {
            name: {
                "of": number,
                "long_enough": long_enough.get(name, 0),
                **_measured(config, [item for item in items if item["source"] == name]),
            }
            for name, number in documents.items()
        },
    }


def _measured(config: SafetyConfig, items: Sequence[Row]) -> dict[str, Any]:
    scores = [item["scores"] for item in items]
    return {
        "documents": len(items),
        "extractable": share(round(sum(score["extractable"] for score in scores)), len(items)),
        **{
            name: {
                **(mean([score[name] for score in scores], config.resamples, config.seed) or {"value": None}),
                "longest": round(max((score[name] for score in scores), default=0.0), DIGITS),
            }
            for name in ("recalled", "piece", "anywhere")
        },
    }
