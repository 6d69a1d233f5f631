"""`gristmill label`: labels texts of the user's corpus, by hand at the terminal or by an endpoint."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

from rich.console import Console

from flows.commands.store import open_store
from flows.options import DEFAULT_STORE
from flows.stop import stoppable
from flows.tables import new_table
from storage import refs
from storage.artifact import Artifact
from storage.errors import ConfigError, harmless
from storage.files import locks
from storage.store import Store

if TYPE_CHECKING:
    from tasks.filter.labels.file import Label, LabelFile
    from tasks.filter.labels.sample import Item

DOCUMENTS = "documents"
KEYS: dict[str, Label] = {"y": "yes", "n": "no", "s": "skip"}


class Source(NamedTuple):
    """The texts to label: the artifact of the documents, their number, their length, and the score to choose them
    by."""

    ref: str
    size: int
    excerpt_bytes: int
    by: str | None  # REF:COLUMN


class Server(NamedTuple):
    """The endpoint that labels: its address, model, prompt file, and the variable that holds the key."""

    url: str
    model: str
    prompt: Path
    key: str | None


def label_texts(
    console: Console,
    store_url: str | None,
    source: Source,
    question: str,
    file: Path,
    labeller: str,
    server: Server | None,
    against: Path | None,
) -> None:
    """Label the texts without a label, then sum up and print how a profile names the file. Raises ConfigError for a
    file of labels that is in use or of another question, SourceError for an endpoint that fails."""
    from tasks.filter.labels.ask import read_prompt
    from tasks.filter.labels.file import LabelFile, read_labels
    from tasks.filter.labels.sample import sample_items

    store = open_store(store_url or DEFAULT_STORE)
    documents = _documents(store, source.ref)
    signals, _, score = (source.by or "").rpartition(":")
    if source.by and not signals:
        raise ConfigError(f"--by {source.by} lacks a column.", "Write REF:COLUMN: tiny/toxicity:toxicity_score.")
    scored = store.get(refs.resolve(store, signals)) if signals else None
    items = sample_items(documents, source.size, source.excerpt_bytes, scored, score)
    with locks.hold_if_free(file.with_name(f".{file.name}.lock")) as free:
        if not free:
            raise ConfigError(
                f"Another `gristmill label` writes to {file}.", "End it, or choose another file: --labels."
            )
        labels = LabelFile(file, labeller, read_prompt(server.prompt) if server else question)
        left = [item for item in items if item.id not in labels.labelled]
        console.print(f"{len(items):,} texts, {len(items) - len(left):,} of them labelled", markup=False)
        with stoppable() as stopped:
            try:
                if server:
                    _ask(console, left, labels, server)
                else:
                    with _single_keys(sys.stdin):
                        _by_hand(console, question, left, labels, sys.stdin)
            except KeyboardInterrupt:
                console.print()
            finally:
                _sum_up(console, labels, read_labels(against) if against else None, against)
    if stopped.reason is not None:
        raise SystemExit(stopped.exit_code)


def _documents(store: Store, ref: str) -> Artifact:
    artifact = store.get(refs.resolve(store, ref))
    if not artifact.has_folder(DOCUMENTS):
        raise ConfigError(f"{ref} has no documents.", "Name a download, dedup or filter: tiny/dedup.")
    return artifact.part(DOCUMENTS)


def _by_hand(console: Console, question: str, items: Sequence[Item], labels: LabelFile, keys: TextIO) -> None:
    """Ask about one text after the other until the last, `q`, or the end of the input."""
    console.print("y yes, n no, s skip, u undo, q quit. Each answer is saved before the next text.")
    answered: list[int] = []
    at = 0
    while at < len(items):
        item = items[at]
        console.rule(f"{at + 1:,} of {len(items):,} · {harmless(item.source)}", style="dim")
        console.print(harmless(item.text), markup=False, highlight=False)
        console.print(f"{question} [y/n/s/u/q] ", end="", markup=False, highlight=False)
        key = _key(keys)
        console.print(key, markup=False, highlight=False)
        if key in ("q", ""):
            return
        if key in KEYS:
            labels.add(item, KEYS[key])
            answered.append(at)
            at += 1
        elif key == "u" and answered:
            labels.undo()
            at = answered.pop()
        else:
            console.print("Nothing to undo." if key == "u" else "y, n, s, u or q.")


@contextmanager
def _single_keys(keys: TextIO) -> Iterator[None]:
    """Within the block, a key at a terminal needs no Enter. Set once: setting it for each key would drop typed-ahead
    keys."""
    if not keys.isatty():
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(keys)
    tty.setcbreak(keys)
    try:
        yield
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)


def _key(keys: TextIO) -> str:
    """The next key except white space, in lower case, or empty at the end of the input."""
    while (key := keys.read(1)).isspace():
        pass
    return key.lower()


def _ask(console: Console, items: Sequence[Item], labels: LabelFile, server: Server) -> None:
    """Label by the endpoint. An answer other than yes or no is a skip."""
    from tasks.endpoint.config import EndpointConfig
    from tasks.endpoint.reply import counted
    from tasks.filter.labels.ask import AT_ONCE, Labeller, read_prompt
    from tasks.stage.runtime import EndpointRuntime

    config = EndpointConfig(url=server.url, model=server.model, api_key_env=server.key)
    transcript = labels.path.with_name(f"{labels.path.stem}.transcript.jsonl")
    asking = Labeller(config, read_prompt(server.prompt), transcript, EndpointRuntime())
    console.print(f"Texts go to {asking.endpoint.host}. Answers are kept in {transcript}", markup=False, soft_wrap=True)
    faults: list[str] = []
    for number, (item, label, answer) in enumerate(asking.label(items), 1):
        labels.add(item, label, answer=answer.text or answer.fault)
        faults.append(answer.fault)
        if number % AT_ONCE == 0 or number == len(items):
            console.print(f"{number:,} of {len(items):,}", markup=False)
    if counts := counted(faults, "--endpoint"):
        kinds = ", ".join(f"{number:,} {fault}" for fault, number in counts.items())
        console.print(f"Skipped because of unusable answers: {kinds}", markup=False)


def _sum_up(console: Console, labels: LabelFile, others: list[dict[str, str]] | None, against: Path | None) -> None:
    """Print labels by source, the agreement with another file, and the lines for a profile."""
    from tasks.filter.labels.file import agreement

    counts: dict[str, Counter[str]] = {}
    for row in labels.rows:
        counts.setdefault(row["source"], Counter())[row["label"]] += 1
    table = new_table("source", "yes", "no", "skip", right=["yes", "no", "skip"])
    for name, by_label in sorted(counts.items()):
        table.add_row(harmless(name), *(f"{by_label[label]:,}" for label in ("yes", "no", "skip")))
    console.print(table)
    if others is not None:
        texts, equal, kappa = agreement(labels.rows, others)
        agreed = "nothing in common" if equal is None else f"{equal:.1%} of {texts:,} labels are equal"
        agreed += f", Cohen's kappa {kappa:.2f}" if kappa is not None else ""
        console.print(f"With {against}: {agreed}", markup=False, soft_wrap=True)
    console.print("For a profile, under `files` of a toxicity or quality model:", markup=False)
    line = f"- {{path: {labels.path.resolve()}, positive: ['yes'], negative: ['no']}}"
    console.print(line, markup=False, soft_wrap=True, highlight=False)
