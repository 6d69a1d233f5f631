"""`python -m benchmarks.filter.language`: language identification beside bare fastText on the same texts.

Speed: each side in a process of its own, in turns, over texts that lie in memory; loading and compiling are not
counted, figures are medians. Bare fastText is `model.f.predict` of the whole text, its line breaks replaced beforehand.
Ours also cuts each text into pieces and names the language of each. Decisions are compared for every document, on the
text as it is: is it English with a probability of 0.65 or more?

With `--labelled FOLDER` (it holds langid_udhr and langid_lingua) also precision, recall and F1, over the languages that
the data and lid.176 share: the Universal Declaration of Human Rights by document and by article, single sentences, and
documents mixed from two languages.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import statistics
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import ROOT, corpus, corpus_parser, environment

Decision = tuple[str | None, float]  # label and probability

SIDES = ("gristmill", "bare fastText")
ALLOWED, THRESHOLD = "en", 0.65
# ISO 639-3, as the Declaration's files are named, to the codes of lid.176
_CODES = """
afr:af als:sq amh:am arb:ar azj_latn:az bel:be ben:bn bod:bo bos_latn:bs bre:br bul:bg cat:ca ces:cs cmn_hans:zh
cmn_hant:zh cos:co cym:cy dan:da deu:de deu_1901:de div:dv ell_monotonic:el ell_polytonic:el eng:en epo:eo est:et
eus:eu fin:fi fra:fr fri:fy gla:gd gle:ga glg:gl gug:gn guj:gu heb:he hin:hi hrv:hr hun:hu hye:hy ind:id isl:is ita:it
jav:jv jpn:ja kan:kn kat:ka kaz:kk khk:mn khm:km kir:ky kor:ko lao:lo lat:la lav:lv lit:lt ltz:lb mal:ml mar:mr mkd:mk
mlt:mt mya:my nep:ne nld:nl nno:nn nob:no oss:os pan:pa pes_1:fa pes_2:fa plt:mg pol:pl por_BR:pt por_PT:pt roh:rm
ron:ro ron_1993:ro rus:ru san:sa slk:sk slv:sl som:so spa:es srp_cyrl:sr sun:su swe:sv swh:sw tam:ta tat:tt tgk:tg
tgl:tl tha:th tuk_latn:tk tur:tr uig_arab:ug ukr:uk urd:ur uzn_latn:uz vie:vi wln:wa ydd:yi yor:yo ast:ast ceb:ceb
hsb:hsb ilo:ilo nds:nds sah:sah
"""
CODES = dict(pair.split(":") for pair in _CODES.split())
SAME = {"nb": "no"}  # what the sentences' labels call otherwise
ARTICLE_BYTES = 100  # shorter lines of the Declaration are headings


def texts_of(folder: Path) -> list[pa.StringArray]:
    """The texts of all shards, a row group each."""
    found = []
    for path in sorted(folder.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                found += file.read_row_group(group, ["text"], use_threads=False)["text"].chunks
    return found


def lines_of(columns: Iterable[pa.StringArray]) -> list[str]:
    """Each text as one line, as fastText wants it."""
    return [text.replace("\n", " ") + "\n" for column in columns for text in column.to_pylist()]


def bare(lines: Sequence[str]) -> tuple[list[Decision], float]:
    """fastText's own label and probability of each line, and the CPU seconds that it took."""
    import fasttext

    from tasks.filter.language.config import PACKAGE
    from tasks.filter.language.identify import MODEL
    from tasks.text.packages import package_file

    fasttext.FastText.eprint = lambda *args: None  # it warns on standard error at every load
    predict = fasttext.load_model(str(package_file(PACKAGE, MODEL))).f.predict
    started = time.process_time()
    found = [predict(line, 2, 0.0, "strict") for line in lines]
    seconds = time.process_time() - started
    return [(pairs[0][1].removeprefix("__label__"), pairs[0][0]) if pairs else (None, 0.0) for pairs in found], seconds


def ours(columns: Iterable[pa.StringArray]) -> list[Decision]:
    """The language signals' label and probability."""
    from tasks.filter.language.config import LanguageConfig
    from tasks.filter.language.measure import measure_language

    found: list[Decision] = []
    for column in columns:
        batch = measure_language(LanguageConfig(as_datatrove=True), column)
        found += zip(batch["language"].to_pylist(), batch["language_score"].to_pylist(), strict=True)
    return found


def child(side: str, folder: Path) -> None:
    """In a process of its own: CPU seconds of one side, as JSON."""
    columns = texts_of(folder)
    if side == "gristmill":
        ours(columns[:1])  # what is compiled or loaded on the first call
        started = time.process_time()
        ours(columns)
        seconds = time.process_time() - started
    else:
        _, seconds = bare(lines_of(columns))
    print(json.dumps({"seconds": seconds}))


def speeds(megabytes: float, runs: int, data: Path) -> None:
    """The table of both sides, and how many decisions differ."""
    text = corpus(data, megabytes)
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    command = [sys.executable, "-m", "benchmarks.filter.language", "--data", str(data), "--megabytes", str(megabytes)]
    for _ in range(runs):
        for side in SIDES:
            done = subprocess.run(
                [*command, "--measure", side], cwd=ROOT.parent, env=environment(1), stdout=subprocess.PIPE, check=True
            )
            found[side].append(json.loads(done.stdout.splitlines()[-1])["seconds"])
    print(f"{platform.machine()}, 1 thread, {text.documents:,} documents, {text.megabytes:.1f} MB, medians of {runs}\n")
    print("| side | MB a core-second | times bare fastText's time |\n|---|---|---|")
    seconds = {side: statistics.median(taken) for side, taken in found.items()}
    for side, taken in seconds.items():
        print(f"| {side} | {text.megabytes / taken:.1f} | {taken / seconds['bare fastText']:.2f} |")
    columns = texts_of(text.folder)
    theirs, _ = bare(lines_of(columns))
    pairs = list(zip(ours(columns), theirs, strict=True))
    changed = sum(_allowed(*mine) != _allowed(*other) for mine, other in pairs if mine[0] is not None)
    labels = sum(mine[0] != other[0] for mine, other in pairs if mine[0] is not None)
    silent = sum(mine[0] is None for mine, _ in pairs)
    print(f"\nOther decision: {changed} of {len(pairs):,}; other label: {labels}; null, having no letter: {silent}.")


def _allowed(label: str | None, score: float) -> bool:
    return label == ALLOWED and score >= THRESHOLD


def declaration(folder: Path) -> Iterator[tuple[str, str]]:
    """(language, text) of each file of the Declaration in a language of lid.176."""
    with zipfile.ZipFile(folder / "langid_udhr" / "udhr2.zip") as archive:
        for name in sorted(archive.namelist()):
            code = CODES.get(Path(name).stem)
            if code:
                yield code, archive.read(name).decode("utf-8")


def sentences(folder: Path) -> Iterator[tuple[str, str]]:
    """(language, sentence)."""
    with gzip.open(folder / "langid_lingua" / "docs.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            yield SAME.get(row["lang"], row["lang"]), row["text"]


def labelled(folder: Path) -> None:
    """Precision, recall and F1 on labelled texts, as averages over languages, and English alone."""
    from tasks.filter.language.identify import identifier

    known = set(identifier().labels)
    documents = [pair for pair in declaration(folder) if pair[0] in known]
    articles = [
        (code, line) for code, text in documents for line in text.splitlines() if len(line.encode()) >= ARTICLE_BYTES
    ]
    single = [pair for pair in sentences(folder) if pair[0] in known]
    print("\n| texts | languages | texts | precision | recall | F1 | F1 of English | English kept at 0.65 |")
    print("|---|---|---|---|---|---|---|---|")
    for name, pairs in (("Declaration", documents), ("its articles", articles), ("sentences", single)):
        row(name, pairs)
    mixtures(documents)


def row(name: str, pairs: Sequence[tuple[str, str]]) -> None:
    """One line of the table."""
    found = ours([pa.array([text for _, text in pairs], pa.string())])
    languages = sorted({code for code, _ in pairs})
    hits = Counter(code for (code, _), (label, _) in zip(pairs, found, strict=True) if code == label)
    wanted, said = Counter(code for code, _ in pairs), Counter(label for label, _ in found)
    precision = {code: hits[code] / said[code] if said[code] else 0.0 for code in languages}
    recall = {code: hits[code] / wanted[code] for code in languages}
    f1 = {code: 2 * hits[code] / (said[code] + wanted[code]) for code in languages}
    kept = Counter(code == ALLOWED for (code, _), pair in zip(pairs, found, strict=True) if _allowed(*pair))
    means = " | ".join(f"{statistics.mean(values.values()):.3f}" for values in (precision, recall, f1))
    shown = f"{kept[True]} of {wanted[ALLOWED]}, {kept[False]} others"
    print(f"| {name} | {len(languages)} | {len(pairs):,} | {means} | {f1[ALLOWED]:.3f} | {shown} |")


def mixtures(documents: Sequence[tuple[str, str]]) -> None:
    """The English Declaration followed by part of another one: does `language_share` tell how large that part is?"""
    from tasks.filter.language.config import LanguageConfig
    from tasks.filter.language.measure import measure_language

    english = next(text for code, text in documents if code == ALLOWED)
    print("\n| letters in another language | documents | called English | `language_share` off by (median, most) |")
    print("|---|---|---|---|")
    for share in (0.1, 0.25, 0.4):
        texts, wanted = [], []
        for code, other in documents:
            if code != ALLOWED:
                part = beginning(other, letters(english) * share / (1 - share))
                texts.append(f"{english}\n{part}")
                wanted.append(letters(english) / (letters(english) + letters(part)))
        batch = measure_language(LanguageConfig(), pa.array(texts, pa.string())).to_pylist()
        kept = [(row, value) for row, value in zip(batch, wanted, strict=True) if row["language"] == ALLOWED]
        errors = [abs(row["language_share"] - value) for row, value in kept]
        print(f"| {share:.0%} | {len(texts)} | {len(errors)} | {statistics.median(errors):.3f}, {max(errors):.3f} |")


def beginning(text: str, size: float) -> str:
    """The first lines of a text that have so many letters together."""
    found: list[str] = []
    for line in text.splitlines():
        if letters("".join(found)) >= size:
            break
        found.append(line)
    return "\n".join(found)


def letters(text: str) -> int:
    """The letters of a text."""
    return sum(map(str.isalpha, text))


def main() -> None:
    """Read the options, measure, print."""
    parser = corpus_parser(__doc__, megabytes=120)
    parser.add_argument("--labelled", type=Path, help="folder with langid_udhr and langid_lingua")
    parser.add_argument("--measure", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    data = options.data.resolve()
    if options.measure:
        child(options.measure, corpus(data, options.megabytes).folder)
        return
    speeds(options.megabytes, options.runs, data)
    if options.labelled:
        labelled(options.labelled)


if __name__ == "__main__":
    main()
