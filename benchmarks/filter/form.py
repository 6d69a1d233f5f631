"""`python -m benchmarks.filter.form`: form signals beside datatrove's four filters, in MB of text per core-second.

Each run is a process of its own over Parquet shards, with one thread; ours measures
every signal, writes the side files and decides by every rule; datatrove's chain stops at a document's first failing
filter. datatrove runs as it comes (spaCy's tokenizer) and with plain splits in its place, on a part of the corpus
that it gets through in less than a minute; so do we for the ratio. Speeds and ratios are of the CPU seconds from the
first document on; what the whole process took, start included, stands beside them. Tools take turns; figures are
medians.

`--parity` compares decisions instead: rule by rule, with datatrove's other rules off, at equal tokenisation; then each
filter's first reason.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, Corpus, Run, corpus, corpus_parser, environment, measure, median
from benchmarks.peer_environment import PEERS

OURS, PEER_AS_IS, PEER_PLAIN = "gristmill", "datatrove", "datatrove, plain split"
PEER = Path(__file__).with_name("datatrove_filters.py")

# Our rules by datatrove's parameter, and by its reason
PARAMETERS = {
    "gopher_quality": {
        "min_words": ("min_doc_words", "gopher_short_doc"),
        "max_words": ("max_doc_words", "gopher_long_doc"),
        "min_mean_word_length": ("min_avg_word_length", "gopher_below_avg_threshold"),
        "max_mean_word_length": ("max_avg_word_length", "gopher_above_avg_threshold"),
        "max_hashes_per_word": ("max_symbol_word_ratio_#", "gopher_too_many_hashes"),
        "max_ellipses_per_word": ("max_symbol_word_ratio_...", "gopher_too_many_ellipsis"),
        "max_bullet_lines": ("max_bullet_lines_ratio", "gopher_too_many_bullets"),
        "max_ellipsis_lines": ("max_ellipsis_lines_ratio", "gopher_too_many_end_ellipsis"),
        "min_alphabetic_words": ("max_non_alpha_words_ratio", "gopher_below_alpha_threshold"),
        "min_stop_words": ("min_stop_words", "gopher_enough_stop_words"),
    },
    "gopher_repetition": {
        "max_duplicate_paragraphs": ("dup_para_frac", "dup_para_frac"),
        "max_duplicate_paragraph_characters": ("dup_para_char_frac", "dup_para_char_frac"),
        "max_duplicate_lines": ("dup_line_frac", "dup_line_frac"),
        "max_duplicate_line_characters": ("dup_line_char_frac", "dup_line_char_frac"),
        **{f"max_top_{n}gram_characters": (f"top_n_grams_{n}", f"top_{n}_gram") for n in (2, 3, 4)},
        **{f"max_duplicate_{n}gram_characters": (f"dup_n_grams_{n}", f"duplicated_{n}_n_grams") for n in range(5, 11)},
    },
    "c4": {
        "max_c4_lorem_ipsum_lines": ("filter_lorem_ipsum", "lorem_ipsum"),
        "max_c4_curly_bracket_lines": ("filter_curly_bracket", "curly_bracket"),
        "min_c4_sentences": ("min_num_sentences", "too_few_sentences"),
    },
    "fineweb": {
        "min_punctuated_lines": ("line_punct_thr", "line_punct_ratio"),
        "max_short_lines": ("short_line_thr", "short_line_ratio"),
        "max_repeated_line_characters": ("char_duplicates_ratio", "char_dup_ratio"),
        "max_newlines_per_word": ("new_line_ratio", "list_ratio"),
    },
}
EMPTY = {"gopher_repetition": "min_characters", "fineweb": "min_nonblank_lines"}  # datatrove's reason is "empty"


@dataclass(frozen=True)
class Contender:
    """A tool and the text that it gets."""

    tool: str
    corpus: Corpus

    def run(self) -> Run:
        """One measured run."""
        folder = str(self.corpus.folder)
        if self.tool == PEER_AS_IS:
            command = [str(PEERS.python), str(PEER), "chain", folder]
        elif self.tool == PEER_PLAIN:
            command = [str(PEERS.python), str(PEER), "chain", folder, "--plain"]
        else:
            command = [sys.executable, "-m", "benchmarks.filter.form", "--ours", folder]
        return measure(command, environment(1) | {"PYTHONPATH": str(ROOT.parent)})


def ours(source: Path) -> dict[str, float]:
    """Measure a folder as the stage does, decide by every rule: how many documents came and stayed, and the CPU seconds
    it took, with the kernels loaded."""
    import pyarrow as pa

    from storage.artifact import Artifact
    from tasks.filter.form.config import FormConfig
    from tasks.filter.form.measure import measure_form
    from tasks.filter.form.stage import form_signals
    from tasks.filter.side_files import read_signals
    from tasks.stage.output import Output
    from tasks.stage.runtime import DataRuntime, Runtime

    decisions(measure_form(FormConfig(as_datatrove=True), pa.array(["It loads its kernels now."])))
    started = time.process_time()
    documents = kept = 0
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        out = Output.at(Path(folder), stage="form", runtime=Runtime(data=DataRuntime(workers=1)))
        # Without a digest: hashing the shards is the store's work, and no peer does it
        form_signals.function(FormConfig(as_datatrove=True), Artifact(folder=source, digest=""), out)
        for path in sorted(out.path.glob("*.parquet")):
            for batch in read_signals(path):
                failing = decisions(batch)
                documents += batch.num_rows
                kept += batch.num_rows - int(sum(failing.values()).astype(bool).sum())
    return {"documents": documents, "kept": kept, "seconds": time.process_time() - started}


def decisions(signals: Any) -> dict[tuple[str, str], Any]:
    """Which rows of a batch fail, as a mask for each (filter, rule), in the order in which rules are tried."""
    import numpy as np

    from tasks.filter.form.rules import C4Rules, FineWebRules, GopherQualityRules, GopherRepetitionRules

    groups = dict(zip(PARAMETERS, (GopherQualityRules, GopherRepetitionRules, C4Rules, FineWebRules), strict=True))
    found = {}
    for group, rules in groups.items():
        for name, threshold in dict(rules()).items():
            kind, _, signal = name.partition("_")
            if kind not in ("min", "max"):
                continue
            values = signals.column(signal).to_numpy(zero_copy_only=False)  # null becomes NaN, which fails nothing
            found[group, name] = np.less(values, threshold) if kind == "min" else np.greater(values, threshold)
    return found


def compare(whole: Corpus, part: Corpus, runs: int) -> None:
    """The table of speeds: datatrove on a part of the text, ours on that and on the whole."""
    installed = PEERS.ensure()
    contenders = [*(Contender(tool, part) for tool in (PEER_AS_IS, PEER_PLAIN, OURS)), Contender(OURS, whole)]
    taken: dict[Contender, list[Run]] = {contender: [] for contender in contenders}
    contenders[-1].run()  # compiles the kernels if need be
    for number in range(runs):
        for contender in contenders:
            print(f"run {number + 1}/{runs}: {contender.tool}, {contender.corpus.megabytes:.1f} MB", file=sys.stderr)
            taken[contender].append(contender.run())
    figures = {contender: median(found) for contender, found in taken.items()}
    seconds = {
        contender: statistics.median(run.result["seconds"] for run in found) for contender, found in taken.items()
    }
    print(f"{platform.machine()}, 1 process, 1 thread, datatrove {installed['datatrove']}, medians of {runs}\n")
    print(
        "| tool | documents | MB | CPU s | MB a core-second | ours / peer | process CPU s | peak memory (MB) | kept |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for contender, run in figures.items():
        text, took = contender.corpus, seconds[contender]
        ratio = "–" if contender.tool == OURS else f"{took / seconds[Contender(OURS, text)]:.0f}"
        speed = text.megabytes / took
        print(
            f"| {contender.tool} | {text.documents:,} | {text.megabytes:.1f} | {took:.3f} | {speed:.2f} "
            f"| {ratio} | {run.cpu:.2f} | {run.peak / 1e6:,.0f} | {run.result['kept']:,} |"
        )


def parity(source: Corpus) -> None:
    """The table of decisions, rule by rule, and of first reasons."""
    import pyarrow.parquet as pq

    from tasks.filter.form.config import FormConfig
    from tasks.filter.form.measure import measure_form

    PEERS.ensure()
    with tempfile.TemporaryDirectory(dir=source.folder.parent) as folder:
        command = [str(PEERS.python), str(PEER), "decide", str(source.folder), folder]
        subprocess.run(command, env=environment(1), stdout=sys.stderr, check=True)
        table = pq.read_table(Path(folder) / "decisions.parquet").combine_chunks()
    batch = measure_form(FormConfig(as_datatrove=True), table["text"].chunk(0))
    failing = decisions(batch)
    print(f"{table.num_rows:,} documents, {source.megabytes:.1f} MB\n")
    print("| filter | rule | equal decisions (%) | removed by both | by datatrove alone | by ours alone | it raises |")
    print("|---|---|---|---|---|---|---|")
    for group, rules in PARAMETERS.items():
        for name, (parameter, _) in rules.items():
            theirs = table[f"{group}.{parameter}"].to_pylist()
            pairs = Counter(zip(theirs, failing[group, name].tolist(), strict=True))
            alone, extra = pairs[False, False], pairs[True, True]
            equal = 100 * (1 - (alone + extra) / table.num_rows)
            raises = pairs[None, False] + pairs[None, True]
            print(f"| {group} | {name} | {equal:.3f} | {pairs[False, True]:,} | {alone:,} | {extra:,} | {raises:,} |")
    print("\n| filter | kept or removed alike (%) | same first reason (%) | differing reasons |\n|---|---|---|---|")
    for group in PARAMETERS:
        pairs = Counter(zip(_expected(table, group), _first(failing, group, table.num_rows), strict=True))
        alike = sum(count for (theirs, mine), count in pairs.items() if (theirs == "") == (mine == ""))
        same = sum(count for (theirs, mine), count in pairs.items() if theirs == mine)
        other = "; ".join(
            f"{theirs or 'kept'} → {mine or 'kept'}: {count}"
            for (theirs, mine), count in pairs.most_common()
            if theirs != mine
        )
        print(f"| {group} | {100 * alike / table.num_rows:.3f} | {100 * same / table.num_rows:.3f} | {other or '–'} |")


def _expected(table: Any, group: str) -> Iterator[str]:
    """datatrove's first reason for each document, as our rule."""
    names = {reason: name for name, (_, reason) in PARAMETERS[group].items()} | {"": "", "empty": EMPTY.get(group, "")}
    return (names.get(reason, reason) for reason in table[group].to_pylist())


def _first(failing: dict[tuple[str, str], Any], group: str, rows: int) -> Iterator[str]:
    masks = {name: mask.tolist() for (of, name), mask in failing.items() if of == group}
    return (next((name for name, mask in masks.items() if mask[row]), "") for row in range(rows))


def main() -> None:
    """Read the options, make what is missing, measure, print."""
    parser = corpus_parser(__doc__, megabytes=120, text="of UTF-8 text, as far as there is", runs="of each tool")
    parser.add_argument("--parity", action="store_true", help="compare decisions, on half of the text")
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ours:
        print(json.dumps(ours(options.ours)))
        return
    data = options.data.resolve()
    whole = corpus(data, options.megabytes)
    if options.parity:
        parity(corpus(data, options.megabytes / 2, whole))
    else:
        compare(whole, corpus(data, options.megabytes / 10, whole), options.runs)


if __name__ == "__main__":
    main()
