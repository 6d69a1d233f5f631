"""Requests as a server would report them, for the tests of what follows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tasks.serve.watch import Observed, Watch, WatchConfig

RELEASE = {"model_name": "tiny", "digest": "d1ge57" * 10, "ref": "tiny/export@3"}
CHAT = "/v1/chat/completions"
PROMPT, ANSWER = "Where is the red key?", "Under the doormat."


@dataclass(frozen=True)
class Found:
    """A finding of a guard."""

    rule: str
    action: str = "mask"
    direction: str = "output"
    count: int = 1


@contextmanager
def watching(folder: Path, **sections: Any) -> Iterator[Watch]:
    """A Watch in a folder, closed at the end."""
    watch = Watch(WatchConfig.model_validate(sections), folder)
    watch.serves(RELEASE["model_name"], RELEASE)
    try:
        yield watch
    finally:
        watch.close()


def ask(watch: Watch, number: int = 0, *, findings: tuple[Found, ...] = (), **named: Any) -> Observed:
    """A request with an answer of five tokens. `named` replaces what is reported."""
    begun = {"request_id": f"r{number}", "route": CHAT, "model": "tiny", "key": "alice", "streamed": True}
    ended = {"status": 200, "finish": "stop", "prompt_tokens": 7, "completion_tokens": 5, "cost": 0.25}
    ended |= {"request_text": PROMPT, "answer_text": ANSWER, "engine": "llama.cpp"}
    observed = watch.request(
        **{name: named.pop(name, value) for name, value in {**begun, "client": "", "headers": None}.items()}
    )
    observed.started(max_tokens=64)
    for _ in range(5):
        observed.tokens(1)
    for finding in findings:
        observed.finding(finding)
    observed.end(**{**ended, **named})
    return observed


def samples(watch: Watch) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of the page, as Prometheus's own parser reads it."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(watch.metrics_page().decode())
        for sample in family.samples
    }


def value(watch: Watch, name: str, **labels: str) -> float:
    """One sample, NaN if it is missing."""
    return samples(watch).get((name, frozenset(labels.items())), math.nan)
