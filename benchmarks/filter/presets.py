"""`python -m benchmarks.filter.presets [FILE.jsonl.gz …]`: presets beside datatrove's own chains, verdict by verdict.

Documents are dealt evenly from the files (JSONL with a field `text`), or from the corpus of the benchmarks. For each
preset: on how many documents both agree that it is kept, with the same text, or removed; and each kind of disagreement.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa

from benchmarks.measure import DATA, ROOT, corpus, environment, measure
from benchmarks.peer_environment import PEERS
from storage.shards.documents import read_documents
from tasks.filter.config import FilterConfig
from tasks.filter.decide import KEPT, decide
from tasks.filter.family import Family
from tasks.filter.form.family import FAMILY as FORM
from tasks.filter.form.measure import measure_form
from tasks.filter.language.config import PACKAGE
from tasks.filter.language.family import FAMILY as LANGUAGE
from tasks.filter.language.identify import MODEL
from tasks.filter.language.measure import measure_language
from tasks.filter.presets import Preset
from tasks.filter.rewrite import mend
from tasks.text.packages import package_file

PEER = Path(__file__).with_name("datatrove_presets.py")
WITHOUT_LANGUAGE = ("gopher", "c4", "fineweb2")  # whose chain has no language filter, or another


def verdicts(config: FilterConfig, families: Sequence[Family], texts: Sequence[str]) -> list[str]:
    """`kept DIGEST` or `removed RULE` of each text, by the rules of form and perhaps language."""
    assert config.language is not None
    column = pa.array(texts, pa.string())
    columns: dict[str, pa.Array] = {}
    for measured in (measure_form(config.form, column), measure_language(config.language.measure, column)):
        columns |= dict(zip(measured.schema.names, measured.columns, strict=True))
    signals = pa.record_batch(columns)
    tests = sorted(
        (rule for family in families for rule in family.rules(*family.sections(config))), key=lambda rule: rule.turn
    )
    decisions = decide(signals, tests)
    assert FORM.mender is not None
    mender = FORM.mender(*FORM.sections(config))
    documents = pa.record_batch(dict.fromkeys(("id", "text", "source", "metadata"), column))
    left, _ = mend(documents, signals, [mender] if mender else [])
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in left["text"].to_pylist()]
    return [
        f"kept {digest}" if rule == KEPT else f"removed {tests[rule].name}"
        for rule, digest in zip(decisions.rule.tolist(), digests, strict=True)
    ]


def texts_of(files: Sequence[Path], data: Path, count: int) -> list[str]:
    """`count` texts, dealt from the files in turn."""
    if not files:
        whole = corpus(data, 20)
        found = [document.text for path in sorted(whole.folder.glob("*.parquet")) for document in read_documents(path)]
        return found[:: max(1, len(found) // count)][:count]
    turns = zip_longest_of([lines_of(path) for path in files])
    return list(itertools.islice(turns, count))


def zip_longest_of(readers: Sequence[Iterator[str]]) -> Iterator[str]:
    """One of each in turn, until all are read."""
    for row in itertools.zip_longest(*readers):
        yield from (text for text in row if text is not None)


def lines_of(path: Path) -> Iterator[str]:
    """The texts of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from (json.loads(line)["text"] for line in file)


def main() -> None:
    """Read the options, ask both sides, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--documents", type=int, default=2000, help="at most (default 2000)")
    parser.add_argument("--data", type=Path, default=DATA, help="where the corpus lies")
    parser.add_argument("--spacy", action="store_true", help="words by spaCy on both sides, as datatrove comes")
    options = parser.parse_args()
    words = "spacy" if options.spacy else "plain"
    form = {"form": {"spacy": "en"}} if options.spacy else {}
    versions = PEERS.ensure()
    texts = texts_of(options.files, options.data.resolve(), options.documents)
    with tempfile.TemporaryDirectory() as folder:
        source, judged = Path(folder) / "texts.jsonl", Path(folder) / "verdicts.json"
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        places = [str(source), str(judged), str(package_file(PACKAGE, MODEL)), words]
        measure([str(PEERS.python), str(PEER), *places], environment(1) | {"PYTHONPATH": str(ROOT.parent)})
        theirs = json.loads(judged.read_text())
    print(f"{len(texts):,} documents, {np.mean([len(text) for text in texts]):,.0f} characters; ", end="")
    print(f"datatrove {versions['datatrove']}, {words} words\n")
    print("| preset | kept by it | kept by ours | same verdict and text | disagreements |\n|---|---|---|---|---|")
    for preset in get_args(Preset):
        families = [FORM] if preset in WITHOUT_LANGUAGE else [LANGUAGE, FORM]
        mine, other = verdicts(FilterConfig.model_validate({"preset": preset} | form), families, texts), theirs[preset]
        same = sum(a == b or a[:7] == b[:7] == "removed" for a, b in zip(mine, other, strict=True))
        apart = Counter(
            f"{b.split('t ')[0] if b.startswith('kept') else b} / {a.split('t ')[0] if a.startswith('kept') else a}"
            for a, b in zip(mine, other, strict=True)
            if a != b and not a[:7] == b[:7] == "removed"
        )
        told = "; ".join(f"{count} {kind}" for kind, count in apart.most_common(6)) or "none"
        kept = [sum(verdict.startswith("kept") for verdict in side) for side in (other, mine)]
        print(f"| {preset} | {kept[0]:,} | {kept[1]:,} | {same:,} | {told} |")


if __name__ == "__main__":
    main()
