"""A store with every kind of artifact that a report reads, made by hand: its texts and names are hostile."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage import refs
from storage.digests import list_files, tree_digest
from storage.keys import KeyPayload
from storage.manifest import InputRef, Manifest
from storage.shards.documents import Document, Verdict, write_documents, write_ledger
from storage.store import Store

BIDI = "\u202edesrever\u2066"
HOSTILE = f"<script>alert(1)</script> </SCRIPT ><!-- \u2028 javascript:alert(2) <img src=http://evil.example/x {BIDI}"
SOURCE = "web <b onclick='x'>"
MAIL = "someone@mail.com"
PATH = "/home/alice/private/text.jsonl"
ENVIRONMENT = {"python": "3.11.7", "gristmill": "0.1.0", "commit": "f00d", "gpu": "1 × NVIDIA H100 80GB HBM3"}
Files = Callable[[Path], None]


class Made:
    """A store, and the artifacts that were put into it."""

    def __init__(self, folder: Path, profile: str = "tiny") -> None:
        self.store, self.profile = Store(str(folder)), profile
        self.locations: dict[str, str] = {}

    def put(
        self,
        stage: str,
        counts: Mapping[str, Any],
        origins: Mapping[str, str] | None = None,
        *,
        uses: Mapping[str, str] | None = None,
        files: Files = lambda folder: None,
        facts: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> str:
        """An artifact, and its ref moved to it. `origins` and `uses` name stages that were put before."""
        payload = KeyPayload(stage=stage, version=1, config=dict(config or {}), inputs={})
        out = self.store.workspace(stage, payload.key()) / "out"
        out.mkdir(parents=True)
        (out / "report.md").write_text(stage)
        files(out)
        listed = list_files(out)
        manifest = Manifest(
            key=payload.key(),
            payload=payload,
            digest=tree_digest(listed),
            files=listed,
            origins={name: InputRef(location=self.locations[one]) for name, one in (origins or {}).items()},
            uses={name: InputRef(location=self.locations[one]) for name, one in (uses or {}).items()},
            counts=dict(counts),
            facts={"seconds": 2.0, "cpu_seconds": 1.0, "peak_memory_bytes": 10_000, **(facts or {})},
            environment=ENVIRONMENT,
            created=datetime(2026, 1, 2, tzinfo=UTC).isoformat(timespec="microseconds"),
        )
        artifact = self.store.publish(out, manifest)
        refs.move(self.store, f"{self.profile}/{stage}", artifact.location, artifact.digest)
        self.locations[stage] = artifact.location
        return artifact.location


def documents(count: dict[str, int], kept: int) -> dict[str, Any]:
    """The counts of a stage that removed documents by these reasons."""
    return {"documents": {"in": kept + sum(count.values()), "kept": kept, "removed": count, "quarantined": 0}}


def texts(numbers: range) -> list[Document]:
    """Hostile documents."""
    title = json.dumps({"title": HOSTILE})
    return [Document(f"{number:032x}", f"{MAIL} {HOSTILE} {number}", SOURCE, title) for number in numbers]


def _ledger(folder: Path, reason: str, numbers: range) -> None:
    rows = [Verdict(f"{number:032x}", SOURCE, "removed", reason, 0.5, None, HOSTILE) for number in numbers]
    (folder / "ledger").mkdir()
    write_ledger(folder / "ledger" / "00000.parquet", rows)


def _documents(folder: Path, numbers: range) -> None:
    (folder / "documents").mkdir()
    write_documents(folder / "documents" / "00000.parquet", texts(numbers))


def _dedup(folder: Path) -> None:
    _documents(folder, range(8))
    _ledger(folder, "near_duplicate", range(8, 10))
    (folder / "copies").mkdir()
    pq.write_table(pa.table({"kept": ["0" * 32, "0" * 32]}), folder / "copies" / "00000.parquet")


def _filter(folder: Path) -> None:
    _documents(folder, range(5))
    _ledger(folder, HOSTILE, range(5, 8))


def _language(folder: Path) -> None:
    pq.write_table(pa.table({"language": ["en"] * 5 + ["fr"] * 3}), folder / "00000.parquet")


def _log(folder: Path) -> None:
    rows = [{"step": step, "loss": 5 - step / 1000, "learning_rate": 0.1} for step in range(1, 2001)]
    rows[-1]["validation_loss"] = 3.25
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "samples.md").write_text(f"# x\n\n## {HOSTILE}\n\n**greedy**\n\n> {HOSTILE}\n> second line\n")


def score(value: float, worth: str) -> dict[str, Any]:
    """A score of 100 questions."""
    rest = {"chance": 0.25, "items": 100, "stderr": 0.04, "higher_is_better": True, "metric": "acc"}
    return {"value": value, "worth": worth, **rest}


def whole_store(folder: Path) -> Made:
    """A store with a run from download to export."""
    made = Made(folder)
    by_source = [{"source": SOURCE, "documents": 10, "characters": 99}]
    made.put(
        "download",
        {**documents({}, 10), "tables": {"Sources": by_source}},
        files=lambda out: _documents(out, range(10)),
        config={"sources": [{"kind": "files", "name": SOURCE, "path": PATH}]},
    )
    rows = [{"source": SOURCE, "in": 10, "kept": 8}]
    made.put(
        "dedup",
        {**documents({"near_duplicate": 2}, 8), "tables": {"Removed by source": rows}},
        {"documents": "download"},
        files=_dedup,
    )
    made.put("language", {"measured": 8}, {"documents": "dedup"}, files=_language)
    rows = [{"source": SOURCE, "documents": 8, "kept": 5}]
    made.put(
        "filter",
        {**documents({HOSTILE: 3}, 5), "tables": {"By source": rows, "Examples": [{"begins": "SECRET EXAMPLE"}]}},
        {"documents": "dedup"},
        uses={"language": "language"},
        files=_filter,
        config={"language": {"allowed": ["en"]}},
    )
    made.put("tokenizer", {"vocab_size": 300, "bytes_per_token": 2.5}, {"documents": "filter"})
    rows = [
        {"source": SOURCE, "split": split, "documents": number, "tokens": 100 * number, "bytes per token": 2.5}
        for split, number in (("train", 4), ("validation", 1))
    ]
    made.put(
        "tokenize",
        {
            **documents({}, 5),
            "train": {"tokens": 400},
            "validation": {"tokens": 100},
            "tables": {"Tokens by source and split": rows},
        },
        {"documents": "filter", "tokenizer": "tokenizer"},
    )
    event = {"kind": "divergence", "step": 700, "action": HOSTILE}
    made.put(
        "pretrain",
        {"parameters": 1000, "steps": 2000, "tokens_seen": 4000, "train_loss": 3.0, "validation_loss": 3.25},
        {"tokens": "tokenize"},
        files=_log,
        facts={"device": "cuda", "processes": 2, "seconds": 3600.0, "joules": {"cpu": 3.6e6}, "events": [event]},
    )
    tasks = {"arc_easy": score(0.26, "no better than chance"), "safety_refusals": score(0.9, "above chance")}
    measured = {"base": {"bits_per_byte": 1.5, "tasks": tasks}}
    answers = [{"prompt": HOSTILE, "base": HOSTILE}]
    made.put(
        "evaluate", {"scores": measured, "tables": {"Answers": answers}}, {"models.base": "pretrain"}, facts={"x": 1}
    )
    proof = {"bytes": 500, "mean_divergence": 0.01, "perplexity": 9.0, "perplexity_increase": 0.02, "same_top": 0.99}
    made.put(
        "export",
        {"formats": {"gguf-q8_0": {**proof, "tolerance": {"max_divergence": 0.1}}}, "summary": HOSTILE},
        {"model": "pretrain", "scores": "evaluate"},
        config={"provenance": {"link": "base", "sources": [{"name": SOURCE, "licence": "CC0-1.0"}]}},
    )
    return made
