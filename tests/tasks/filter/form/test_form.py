"""Form: the byte kernels against plain Python, the rules as datatrove decides, and texts of every odd kind."""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.artifact import Artifact
from storage.shards.documents import Document, shard_name, write_documents
from tasks.filter.form import measure as measuring
from tasks.filter.form.c4 import c4_lines, count_sentences, keep_c4_lines
from tasks.filter.form.characters import SIZE, SYMBOLS, TERMINALS
from tasks.filter.form.config import C4LineRules, FormConfig
from tasks.filter.form.measure import measure_form
from tasks.filter.form.rules import C4Rules, FineWebRules, GopherQualityRules, GopherRepetitionRules
from tasks.filter.form.stage import form_signals
from tasks.filter.form.words.plain import ends_sentence, words_of
from tasks.stage.config import StageConfig
from tasks.stage.output import Output
from tasks.text.characters import UNSPACED
from tests.runtimes import runtime_of
from tests.tasks.filter.linear import linear_time

PARTS = [
    *" \n\n\n\t\r\v\f\x1c\x1f\x85\u00a0\u2028\u3000", "\r\n", "\n\n", " \n", "a", "b", "ab", "A", "é", "e\u0301",
    "中文", "😀", "שלום", "ß", "ǅ", "İ", "\x00", "\u200b", "1", "٣", "²", "the", "of", " the ", " be ", "word word. ",
    ".", ". ", "...", "…", "#", "-", "•", "*", "[", "]", "[1]", "[٣]", "[edit]", "[citation needed]", "{", "}",
    '"', "'", "”", "»", "。", "!", "?)", "javascript", "JavaScript", "Lorem Ipsum", "lorem", " ipsum", "use cookies",
    "u\u017fe cookies", "use coo\u212aies", "Privacy Policy", "的", "的的", "。」", "「", "ที่", "การ", "ក្នុង", "〇",
    "２", "」)",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PARTS) | st.text(max_size=2), max_size=40).map("".join)
LINE_RULES = st.builds(
    C4LineRules,
    terminal_punctuation=st.booleans(),
    min_words=st.integers(0, 3),
    max_word_length=st.sampled_from([5, 12, 1000]),
    javascript=st.booleans(),
    policy=st.booleans(),
    citations=st.booleans(),
)
CONFIGS = st.builds(
    FormConfig,
    as_datatrove=st.booleans(),
    short_line_length=st.integers(0, 30),
    c4=LINE_RULES,
    stop_words=st.just(["the", "be", "of", "的", "การ", "中文", "ก"]),
)
ORDER = (GopherQualityRules, GopherRepetitionRules, C4Rules, FineWebRules)
BOUNDS = ("min_", "max_")
STORY = (
    "The river begins in the hills. It runs to the sea, and the towns of the plain take their water from it.\n"
    "In spring it is high and brown! Who would have thought that a brook could be so wide? Few would.\n"
    "The farms that lie along it were made when the first people came with their cattle and their corn.\n"
)


def measure(*texts: str, config: FormConfig | None = None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = measure_form(config or FormConfig(), pa.array(texts, pa.string())).to_pylist()
    return rows


def share(part: float, whole: int) -> float | None:
    return part / whole if whole else None


def repeats(parts: Sequence[str]) -> list[str]:
    seen: set[str] = set()
    repeated = []
    for part in parts:
        if part in seen:
            repeated.append(part)
        seen.add(part)
    return repeated


def spans(text: str, words: Sequence[str]) -> list[tuple[int, int]]:
    found, at = [], 0
    for word in words:
        start = text.index(word, at)
        at = start + len(word)
        found.append((start, at))
    return found


def top(text: str, words: Sequence[str], n: int, least: int) -> int:
    grams = Counter(tuple(words[k : k + n]) for k in range(len(words) - n + 1))
    if not grams or grams.most_common(1)[0][1] < least:
        return 0
    gram, count = grams.most_common(1)[0]
    first = next(k for k in range(len(words)) if tuple(words[k : k + n]) == gram)
    places = spans(text, words)[first : first + n]
    spaces = sum(start > end for (_, end), (start, _) in itertools.pairwise(places))
    return (sum(map(len, gram)) + spaces) * count


def stopped(words: Sequence[str], config: FormConfig) -> int:
    sequences = {tuple(words_of(word, config.part_unspaced)) for word in config.stop_words}
    return sum(any(tuple(words[k : k + len(s)]) == s for k in range(len(words))) for s in sequences)


def duplicate(words: Sequence[str], n: int) -> int:
    seen, characters, k = set(), 0, 0
    while k <= len(words) - n:
        gram = tuple(words[k : k + n])
        known = gram in seen
        characters += known * sum(map(len, gram))
        seen.add(gram)
        k += n if known else 1
    return characters


def symbol(character: str) -> bool:
    return character in SYMBOLS + TERMINALS or character in map(chr, (*range(9), *range(11, 32), *range(127, 160)))


def quality_by_python(text: str, config: FormConfig) -> dict[str, Any]:
    words, lines = words_of(text, config.part_unspaced), text.splitlines()
    content = [word for word in words if not all(map(symbol, word))]
    return {
        "words": len(content),
        "mean_word_length": share(sum(map(len, content)), len(content)),
        "hashes_per_word": share(text.count("#"), len(words)),
        "ellipses_per_word": share(text.count("...") + text.count("…"), len(words)),
        "bullet_lines": share(sum(line.lstrip().startswith(("•", "-")) for line in lines), len(lines)),
        "ellipsis_lines": share(sum(line.rstrip().endswith(("...", "…")) for line in lines), len(lines)),
        "alphabetic_words": share(sum(any(map(str.isalpha, word)) for word in words), len(words)),
        "stop_words": stopped(words, config),
    }


def repetition_by_python(text: str, config: FormConfig) -> dict[str, Any]:
    words, size = words_of(text, config.part_unspaced), len(text)
    paragraphs = re.split(r"\n{2,}", text.strip()) if words else []
    lines = re.split(r"\n+", text) if text else []
    if not config.as_datatrove:
        lines = [line for line in lines if line.strip()]
    least = 1 if config.as_datatrove else 2
    found = {
        "characters": size,
        "duplicate_paragraphs": share(len(repeats(paragraphs)), len(paragraphs)),
        "duplicate_paragraph_characters": share(len("".join(repeats(paragraphs))), size),
        "duplicate_lines": share(len(repeats(lines)), len(lines)),
        "duplicate_line_characters": share(len("".join(repeats(lines))), size),
    }
    found |= {f"top_{n}gram_characters": share(top(text, words, n, least), size) for n in (2, 3, 4)}
    return found | {f"duplicate_{n}gram_characters": share(duplicate(words, n), size) for n in range(5, 11)}


def c4_by_python(text: str, rules: C4LineRules, part: bool) -> dict[str, Any]:
    kept = c4_lines(text, rules, part)
    with_javascript = c4_lines(text, rules.model_copy(update={"javascript": False, "policy": False}), part)
    with_policy = c4_lines(text, rules.model_copy(update={"policy": False}), part)
    uncut = c4_lines(text, rules.model_copy(update={"citations": False}), part)
    found = {
        "c4_lorem_ipsum_lines": sum("lorem ipsum" in line.lower() for line in with_javascript),
        "c4_curly_bracket_lines": sum("{" in line for line in with_policy),
        "c4_sentences": sum(count_sentences(line, part) for line in kept),
        "c4_lines": len(kept),
    }
    nonblank = sum(bool(line.strip()) for line in text.splitlines())
    if rules.min_words > 0:
        found["c4_removed_lines"] = nonblank - len(kept)
    if not rules.citations:
        found["c4_citations"] = 0
    elif not rules.terminal_punctuation and not rules.javascript and not rules.policy:
        found["c4_citations"] = sum(len(re.findall(r"\[\d*]|\[edit]|\[citation needed]", line)) for line in uncut)
    return found


def fineweb_by_python(text: str, config: FormConfig) -> dict[str, Any]:
    lines = [line for line in text.split("\n") if line.strip()]
    repeated = len("".join(repeats(lines)))

    def ends(line: str) -> bool:
        if config.as_datatrove:
            return line.endswith(tuple(TERMINALS))
        return ends_sentence(words_of(line, True)[-1], True)

    return {
        "nonblank_lines": len(lines),
        "text_lines": len(lines),
        "punctuated_lines": share(sum(map(ends, lines)), len(lines)),
        "short_lines": share(sum(len(line) <= config.short_line_length for line in lines), len(lines)),
        "repeated_line_characters": share(repeated, len(text.replace("\n", ""))),
        "newlines_per_word": share(text.count("\n"), len(words_of(text, config.part_unspaced))),
    }


def by_python(text: str, config: FormConfig) -> dict[str, Any]:
    """The kernels' measurements, computed from the filters' descriptions."""
    measured = quality_by_python(text, config) | repetition_by_python(text, config)
    return measured | c4_by_python(text, config.c4, config.part_unspaced) | fineweb_by_python(text, config)


@pytest.mark.shadow("tasks.filter.form.kernels.count_form", "tasks.filter.form.kernels.hash_words")
@given(st.lists(TEXTS, max_size=4), CONFIGS)
def test_the_kernels_measure_what_plain_python_does(texts: list[str], config: FormConfig) -> None:
    for text, row in zip(texts, measure(*texts, config=config), strict=True):
        expected = by_python(text, config)
        assert {name: row[name] for name in expected} == expected
        assert set(row) - set(expected) <= {"c4_removed_lines", "c4_citations"}


UNSPACED_LETTERS = {chr(code) for block in UNSPACED for code in block if chr(code).isalpha()}


def cut_by_hand(text: str) -> list[str]:
    """Each letter of a script without spaces begins a word. Other characters stay with the letter before them."""
    words: list[str] = []
    for run in text.split():
        words.append("")
        for character in run:
            begun = any(map(str.isalnum, words[-1]))
            if character.isalnum() and begun and UNSPACED_LETTERS.intersection(words[-1] + character):
                words.append("")
            words[-1] += character
    return words


@given(TEXTS)
def test_letters_of_scripts_without_spaces_are_words(text: str) -> None:
    assert words_of(text, True) == cut_by_hand(text)
    assert words_of(text, False) == text.split()


@given(TEXTS)
def test_a_text_without_such_letters_is_measured_as_before(text: str) -> None:
    spaced = "".join(" " if words_of(character * 2, True) != [character * 2] else character for character in text)
    plain, (row,) = by_white_space(spaced), measure(spaced)
    assert {name: row[name] for name in plain} == plain


def by_white_space(text: str) -> dict[str, Any]:
    """Word signals by only `str.split`."""
    words = text.split()
    content = [word for word in words if not all(map(symbol, word))]
    found = {"words": len(content), "mean_word_length": share(sum(map(len, content)), len(content))}
    for n in (2, 3, 4):
        grams = Counter(" ".join(words[k : k + n]) for k in range(len(words) - n + 1))
        found[f"top_{n}gram_characters"] = share(
            sum(len(gram) * count for gram, count in grams.most_common(1) if count > 1), len(text)
        )
    return found


@given(st.lists(st.sampled_from(["a", "b", "c", "dd", "\n"]), max_size=80).map(" ".join))
def test_repetition_is_found_wherever_it_stands(text: str) -> None:
    (row,) = measure(text)
    expected = repetition_by_python(text, FormConfig())
    assert {name: row[name] for name in expected} == expected


def test_real_text_is_measured_as_plain_python_does(shared_data: Callable[[str], Path]) -> None:
    config = FormConfig()
    for name in ("c4_demo", "peps"):
        with gzip.open(shared_data(f"pretrain/{name}") / "docs.jsonl.gz", "rt") as file:
            texts = [json.loads(line)["text"][:20_000] for line in itertools.islice(file, 60)]
        for text, row in zip(texts, measure(*texts), strict=True):
            expected = by_python(text, config)
            assert {key: row[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("signal", "text", "value"),
    [
        ("words", "one two -- three...", 3),
        ("mean_word_length", "abcd ef -- !", 3.0),
        ("hashes_per_word", "#one #two three four", 0.5),
        ("ellipses_per_word", "a... b…. c...... d", 1.0),
        ("bullet_lines", "- a\n  • b\n* c\n\n", 0.5),
        ("ellipsis_lines", "a...\nb…  \nc. . .\nd", 0.5),
        ("alphabetic_words", "a1 22 β 4.", 0.5),
        ("stop_words", "the The the, of of", 2),
        ("duplicate_paragraphs", "a\n\nb\n\n\na\n\na\n \na", 0.25),
        ("duplicate_paragraph_characters", " ab\n\nab ", 2 / 8),
        ("duplicate_lines", "ab\nab\n\nc\nab", 0.5),
        ("duplicate_line_characters", "ab\nab\n\nc\nab", 4 / 11),
        ("top_2gram_characters", "x a b y a b", 6 / 11),
        ("top_3gram_characters", "x y", 0.0),
        ("top_4gram_characters", "all four words differ", 0.0),
        ("duplicate_5gram_characters", "a b c d e a b c d e a b c d e", 10 / 29),
        ("c4_sentences", 'He came. "She left!" Then (it rained.) And', 0),
        ("c4_sentences", 'He came. "She left!" Then (it rained.) And so on.', 4),
        ("c4_lines", "It was good.[1]\nIt was not. [2]\nNo, no...\nTwo words.\nUse of javascript here.", 1),
        ("c4_removed_lines", "It was good.\n\nNo end here\nA privacy policy line.", 2),
        ("c4_curly_bracket_lines", "if (a) { b }\nThe set {a} is open.", 1),
        ("c4_lorem_ipsum_lines", "Lorem ipsum dolor sit\nThen Lorem ipsum dolor sit.", 1),
        ("punctuated_lines", 'a.\nb. \nc?\nd"', 0.75),
        ("punctuated_lines", '"She came."\nHe (too!)  \nthe end\nNo)', 0.5),
        ("duplicate_lines", "one\n \n \n \ntwo\n", 0.0),
        ("short_lines", "a" * 30 + "\n" + "a" * 31 + "\n \n", 0.5),
        ("repeated_line_characters", "ab\nab\n \n c", 2 / 7),
        ("newlines_per_word", "a\n\nb", 1.0),
        ("words", "我能吞下玻璃，而不伤身体。", 11),
        ("words", "用Python 3写程序", 6),
        ("words", "「２０２６年」", 2),
        ("words", "ประเทศไทย", 9),
        ("mean_word_length", "ที่นี่", 3.0),
        ("top_2gram_characters", "中国中国 中国", 6 / 7),
        ("c4_sentences", "「他来了。」她说：他走了！为什么？", 3),
        ("c4_sentences", "他来了", 0),
        ("c4_lines", "他来了。[1]\n他走了\n「她来了。」\n等等……", 2),
        ("punctuated_lines", "「他来了。」\n他走了\n好！）\n等", 0.5),
    ],
)
def test_a_signal_is_what_its_paper_says(signal: str, text: str, value: float | None) -> None:
    assert measure(text)[0][signal] == value


def test_datatroves_own_counts_are_there_by_choice() -> None:
    (row,) = measure('all four words differ\n"So."\n \n \nEnd. ', config=FormConfig(as_datatrove=True))
    assert row["top_4gram_characters"] == len("all four words differ") / row["characters"]
    assert row["punctuated_lines"] == 0.0
    assert row["duplicate_lines"] == 0.2


ODD = {
    "empty": "",
    "white space": " \n\n \t\u3000\r\n",
    "one long word": "x" * 10_000_000,
    "identical lines": "the same line again.\n" * 100_000,
    "newlines": "\n" * 1_000_000,
    "closing marks": '"' * 1_000_000,
    "brackets": "[1" * 500_000 + " two three.",
    "digits in brackets": "[" + "1" * 1_000_000 + " two three.",
    "Chinese": "我能吞下玻璃而不伤身体。" * 20_000,
    "right to left": "יותר טוב מאוחר מאשר אף פעם. " * 20_000,
    "emoji": "😀👨\u200d👩\u200d👧🏳️" * 20_000,
    "mojibake": "Ã©tÃ© â€œquotedâ€\x9d ï»¿" * 20_000,
    "null bytes": "\x00" * 100_000,
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_text_is_measured_in_linear_time(kind: str) -> None:
    measure("warm")
    with linear_time():
        (row,) = measure(ODD[kind])
    assert row["characters"] == len(ODD[kind])
    nulls = {name for name, value in row.items() if value is None}
    if kind == "empty":
        assert row["words"] == 0
        assert {"mean_word_length", "duplicate_lines", "top_2gram_characters", "punctuated_lines"} <= nulls
    elif kind in ("white space", "newlines"):
        assert {"mean_word_length", "alphabetic_words", "punctuated_lines", "newlines_per_word"} <= nulls
    if kind == "identical lines":
        assert row["duplicate_lines"] == pytest.approx(99_999 / 100_000)
        assert row["duplicate_10gram_characters"] > 0.75
    if kind == "one long word":
        assert (row["words"], row["mean_word_length"]) == (1, 10_000_000)


@given(TEXTS, LINE_RULES)
def test_what_c4_leaves_is_what_was_counted(text: str, rules: C4LineRules) -> None:
    config = FormConfig(c4=rules)
    kept = c4_lines(text, rules, True)
    (row,) = measure(text, config=config)
    assert row["c4_lines"] == len(kept)
    assert row["c4_sentences"] == sum(count_sentences(line, True) for line in kept)
    if not row["c4_removed_lines"] and not row["c4_citations"]:
        assert keep_c4_lines(text, rules, True).split() == text.split(), "what has nothing to remove loses nothing"
    again = keep_c4_lines(text, rules, True)
    assert all(line.strip() in text or row["c4_citations"] for line in again.splitlines())


def test_c4_keeps_sentences_and_drops_the_rest() -> None:
    page = (
        "Home | About\nThe river is long.[1] It is wide.\n\n  We use cookies on this page.\n"
        "Enable JavaScript to go on.\nAnd so on...\nYes, it is!"
    )
    assert keep_c4_lines(page, C4LineRules(), True) == "The river is long. It is wide.\nYes, it is!"


def test_rules_bound_signals_that_are_measured() -> None:
    measured = measure_form(FormConfig(), pa.array([], pa.string())).schema
    bounded = [name.partition("_") for rules in ORDER for name in rules.model_fields if name.startswith(BOUNDS)]
    assert {signal for _, _, signal in bounded} <= set(measured.names)
    assert {str(field.type) for field in measured} == {"int64", "double"}
    assert len(bounded) == len(set(bounded)) == 32


def failing(row: dict[str, Any], *groups: type[StageConfig]) -> list[str]:
    """The rules that a row fails, in their order."""
    found = []
    for name, threshold in itertools.chain.from_iterable(dict(group()).items() for group in groups):
        if not name.startswith(BOUNDS):
            continue
        kind, _, signal = name.partition("_")
        value = row[signal]
        if value is not None and (value < threshold if kind == "min" else value > threshold):
            found.append(name)
    return found


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (STORY, None),
        (STORY[:80], "min_words"),
        ("a b c " * 40, "min_mean_word_length"),
        (STORY + "# " * 8, "max_hashes_per_word"),
        (STORY.replace(" ", "... ", 8), "max_ellipses_per_word"),
        (STORY.replace("\n", "...\n", 1), "max_ellipsis_lines"),
        (STORY + "12 " * 20, "min_alphabetic_words"),
        (STORY + "\n\n" + STORY, "max_duplicate_paragraphs"),
        (STORY + STORY, "max_duplicate_lines"),
        (STORY + "the sea " * 12, "max_top_2gram_characters"),
        (STORY.replace("brown!", "{brown}!"), "max_c4_curly_bracket_lines"),
        (STORY.replace(".", "").replace("!", "").replace("?", ""), "min_c4_sentences"),
    ],
)
def test_the_first_failing_rule_is_the_one_that_datatrove_names(text: str, rule: str | None) -> None:
    assert next(iter(failing(measure(text)[0], *ORDER)), None) == rule


def test_no_character_of_a_class_is_beyond_the_tables() -> None:
    assert not [
        code for code in range(SIZE, 0x110000) if chr(code).isalpha() or chr(code).isspace() or chr(code).isdecimal()
    ]


def test_the_stage_writes_the_same_for_any_workers_and_order(tmp_path: Path) -> None:
    texts = [f"{STORY}{number} {part}" for number, part in enumerate(PARTS)]
    documents = [Document.new(text, "test") for text in texts]
    for number in range(3):
        write_documents(tmp_path / "in" / shard_name(number), documents[number::3])
    found = []
    for workers in (1, 2):
        out = Output.at(tmp_path / str(workers), stage="form", runtime=runtime_of(workers=workers))
        form_signals.function(FormConfig(), Artifact.at(tmp_path / "in"), out)
        found.append([path.read_bytes() for path in sorted(out.path.glob("*.parquet"))])
    assert found[0] == found[1]
    (first, *_) = [pq.read_table(path).to_pylist() for path in sorted(out.path.glob("*.parquet"))]
    assert first == measure(*texts[0::3]), "a text is measured alike in any company"


def test_a_text_of_newlines_writes_nothing_beyond_its_table() -> None:
    texts = [f"{number}{chr(10) * 1000}" for number in range(50)]
    size = max(map(len, texts))
    work = measuring._new_workspace(size)
    guarded = np.zeros((4 * len(work.table), 2), np.uint64)
    measuring._local.size, measuring._local.workspace = size, work._replace(table=guarded[: len(work.table)])
    try:
        measure_form(FormConfig(), pa.array(texts, pa.string()))
        assert not guarded[len(work.table) :].any()
    finally:
        measuring._local.__dict__.clear()
