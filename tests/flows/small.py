"""A run of `smoke` that takes seconds, and what it leaves without Prefect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flows.pipeline import stages
from flows.session import session_of
from profiles.load import load
from tasks.stage.session import open_session
from tests.pipeline.runs import digests

SMALL = (
    "download.sources=[{kind: embedded, corpora: [encyclopedia], limit: 60, instructions: 20, preferences: 10, "
    "answer_words: 20}]",
    "download.benchmarks=[arc_easy]",
    "download.benchmark_items=5",
    "filter.toxicity=null",
    "filter.pii=null",
    "filter.contamination=null",
    "pretrain.steps=4",
    "pretrain.warmup_steps=1",
    "pretrain.validation_every=4",
    "pretrain.sample_prompts=[]",
)


def plain(store: Path, to: str, *sets: str) -> dict[str, str]:
    """The digests of a run in this process, without Prefect."""
    profile = load("smoke", [*SMALL, *sets, f"runtime.store={store}"])
    session = session_of(profile, to)
    with open_session(replace(session, call=lambda stage, config, inputs: stage.materialize(config, inputs)[0])):
        stages(profile)
    return digests(store)
