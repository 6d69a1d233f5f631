"""Benchmark questions in training documents: found wherever they are and however they are written, and only they."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from storage.artifact import Artifact
from storage.shards.documents import Document, read_batches, shard_name, write_documents
from tasks.filter.contamination.config import ContaminationConfig
from tasks.filter.contamination.plain import plain
from tasks.filter.contamination.questions import read_questions
from tasks.filter.contamination.stage import contamination_signals
from tasks.filter.side_files import IDS, IdDigest
from tasks.stage.output import Output
from tests.runtimes import runtime_of

LONG = (
    "Which of these birds builds its nest on the ground and hides it under dry grass before the first warm days of May?"
)
ANSWER = "the wood lark of the northern heath"
SHORT = "What do the herons of the lower river eat?"
TINY = "Who?"
BENCHMARKS = {
    "birds": [(LONG, ["an owl", ANSWER], 1), (SHORT, ["fish", "grass"], 0)],
    "people": [(TINY, ["Adam", "Eve"], 0), (f"Question: {LONG}\nAnswer:", [f" {ANSWER}", " an owl"], 0)],
}
Question = tuple[str, list[str], int]


def write(folder: Path, texts: Sequence[str], benchmarks: dict[str, list[Question]], shards: int = 1) -> None:
    made = [Document.new(text, "test") for text in texts]
    for number in range(shards):
        part = made[len(made) * number // shards : len(made) * (number + 1) // shards]
        write_documents(folder / "documents" / shard_name(number), part)
    (folder / "benchmarks").mkdir()
    for name, questions in benchmarks.items():
        rows = [
            {"id": f"{name}-{n}", "query": query, "choices": choices, "gold": gold}
            for n, (query, choices, gold) in enumerate(questions)
        ]
        (folder / "benchmarks" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(folder: Path, workers: int = 1, name: str = "run", **config: int) -> Output:
    out = Output.at(folder / name, runtime=runtime_of(workers=workers))
    parts = [Artifact.at(folder / part) for part in ("documents", "benchmarks")]
    contamination_signals.function(ContaminationConfig.model_validate(config), *parts, out)
    return out


def signals(out: Output) -> list[tuple[int, str]]:
    rows = [row for path in sorted(out.path.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    return [(row["contamination_ngrams"], row["contamination_benchmarks"]) for row in rows]


def questions(out: Output) -> dict[str, dict[str, int]]:
    rows = [json.loads(line) for line in (out.path / "questions.jsonl").read_text().splitlines()]
    return {row["id"]: {key: row[key] for key in ("ngrams", "found", "documents")} for row in rows}


def parts(out: Output) -> dict[str, str]:
    rows = [json.loads(line) for line in (out.path / "questions.jsonl").read_text().splitlines()]
    return {row["id"]: row["part"] for row in rows if row["found"]}


FILLER = "The pond is still in the morning and nobody walks there until the fog has gone from the trees."
ASKED, WORDS = (len(re.findall(r"\w+", text)) for text in (LONG, f"{LONG} {ANSWER}"))


@pytest.mark.parametrize(
    "planted",
    [
        f"{LONG} {ANSWER}",
        f"{LONG} {ANSWER}".upper(),
        f"{LONG} {ANSWER}".replace(" ", "\n"),
        f"{LONG} {ANSWER}".replace(" ", ", ").replace("?", ""),
        f"{FILLER} {LONG} {ANSWER}. {FILLER}",
        f"{FILLER * 50} {LONG} {ANSWER}",
        f"{LONG} {ANSWER}".replace(" ", "_"),
        f"{LONG} {ANSWER}".replace(" ", "\\n"),
        f"{LONG} {ANSWER}".replace(" ", "%20"),
        f"{LONG} {ANSWER}".replace("n", "n\u00ad").replace("t", "\u200bt"),
        f"{LONG} {ANSWER}".replace("e", "&#101;").replace(" ", "&nbsp;"),
        f"{LONG} {ANSWER}".replace(" the ", " the[12] <b>").replace("birds", "birds²"),
        f"{LONG} {ANSWER}".replace("ground", "gro-\nund").replace(" grass", "\n  12 grass"),
        "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in f"{LONG} {ANSWER}"),
    ],
)
def test_a_question_is_found_at_any_place_in_any_case_and_punctuation(tmp_path: Path, planted: str) -> None:
    write(tmp_path, [FILLER, planted, FILLER * 2], BENCHMARKS)
    out = run(tmp_path)
    assert signals(out) == [(0, ""), (WORDS - 12, "birds,people"), (0, "")]
    assert questions(out)["birds-0"] == {"ngrams": ASKED - 12, "found": ASKED - 12, "documents": 1}
    assert parts(out)["birds-0"] == "query"
    assert questions(out)["people-1"] == questions(out)["birds-0"], "the prompt's own words are not looked for"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (" ".join(LONG.split()[3:16]), 1),
        (" ".join(LONG.split()[3:15]), 0),
        (" ".join([*LONG.split()[:11], "however", *LONG.split()[11:22]]), 0),
        (" ".join(reversed(LONG.split())), 0),
        ("an owl " * 20, 0),
        (f"{SHORT} Fish!", 2),
        (SHORT, 1),
        (SHORT.replace("the lower", "that lower"), 0),
        (f"So: {ANSWER}.", 0),
        (TINY, 0),
        ("", 0),
    ],
)
def test_only_whole_ngrams_and_whole_short_questions_are_found(tmp_path: Path, text: str, found: int) -> None:
    write(tmp_path, [text], BENCHMARKS)
    assert signals(run(tmp_path))[0][0] == found


def test_a_benchmark_is_reported_with_what_could_not_be_matched(tmp_path: Path) -> None:
    write(tmp_path, [f"{LONG} {ANSWER}", FILLER, f"{FILLER} {SHORT} Fish."], BENCHMARKS)
    out = run(tmp_path)
    assert out.counts["tables"]["Benchmarks in the documents"] == [
        {"benchmark": "birds", "questions": 2, "unmatchable": 0, "dirty": 2, "common_only": 0, "documents": 2},
        {"benchmark": "people", "questions": 2, "unmatchable": 1, "dirty": 1, "common_only": 0, "documents": 1},
    ]
    assert questions(out)["people-0"] == {"ngrams": 0, "found": 0, "documents": 0}
    assert (out.counts["measured"], out.counts["contaminated"], out.counts["common_ngrams"]) == (3, 2, 0)
    (side_file,) = out.path.glob("*.parquet")
    digest = IdDigest()
    for _, batch in read_batches(tmp_path / "documents" / shard_name(0)):
        digest.update(batch["id"])
    assert pq.read_metadata(side_file).metadata[IDS] == digest.hex().encode()


def test_what_stands_in_many_documents_is_a_common_phrase(tmp_path: Path) -> None:
    phrase = " ".join(LONG.split()[:13])
    texts = [f"Number {n}. {phrase}" for n in range(3)] + [f"{LONG} {ANSWER}", f"{phrase} {phrase} {phrase}"]
    write(tmp_path, texts, BENCHMARKS)
    assert [count for count, _ in signals(run(tmp_path, max_documents=5))] == [1, 1, 1, WORDS - 12, 1]
    out = run(tmp_path, name="four", max_documents=4)
    assert [count for count, _ in signals(out)] == [0, 0, 0, WORDS - 12, 0], "but not in the question itself"
    assert questions(out)["birds-0"] == {"ngrams": ASKED - 12, "found": ASKED - 12, "documents": 1}
    assert out.counts["common_ngrams"] == 1
    told = {"phrase": phrase.lower(), "documents": 4, "benchmarks": "birds,people"}
    assert [json.loads(line) for line in (out.path / "phrases.jsonl").read_text().splitlines()] == [told]
    assert out.counts["tables"]["Common phrases, not counted"] == [told]
    out = run(tmp_path, name="one", max_documents=1)
    assert out.counts["tables"]["Benchmarks in the documents"][0]["dirty"] == 1


@pytest.mark.parametrize("query", [LONG, SHORT])
def test_the_wider_a_question_leaked_the_more_documents_have_it(tmp_path: Path, query: str) -> None:
    write(tmp_path, [f"{FILLER} {n} {query} {FILLER}" for n in range(30)], BENCHMARKS)
    out = run(tmp_path, max_documents=3)
    assert all(count for count, _ in signals(out))
    assert out.counts["contaminated"] == 30
    assert out.counts["tables"]["Benchmarks in the documents"][0]["dirty"] == 1


def test_an_answer_in_many_documents_is_a_common_phrase(tmp_path: Path) -> None:
    answer = "it is a truth universally acknowledged by all"
    benchmarks: dict[str, list[Question]] = {"books": [("How does it begin?", [answer], 0)]}
    write(tmp_path, [f"{FILLER} {n} {answer}" for n in range(5)], benchmarks)
    out = run(tmp_path, max_documents=4)
    assert out.counts["contaminated"] == 0
    (row,) = out.counts["tables"]["Benchmarks in the documents"]
    assert (row["dirty"], row["common_only"]) == (0, 1)
    assert run(tmp_path, name="five", max_documents=5).counts["contaminated"] == 5


def test_a_short_query_of_several_questions_says_nothing_of_any_of_them(tmp_path: Path) -> None:
    asked = "Which one of these is correct?"
    one: list[Question] = [(asked, ["the moon has no air of its own", "it has"], 0)]
    two: list[Question] = [*one, (asked, ["the sea is higher than the land", "it is not"], 0)]
    write(tmp_path / "one", [asked], {"one": one})
    write(tmp_path / "two", [asked, f"{asked} The sea is higher than the land"], {"two": two})
    assert signals(run(tmp_path / "one")) == [(1, "one")]
    assert [count > 0 for count, _ in signals(run(tmp_path / "two"))] == [False, True]


RENDERINGS = {
    "labels": "Question: {q}\nAnswer: {a}",
    "dialogue": "Q: {q}\n\nA: {a}",
    "letters": "{q}\nA. {0}\nB. {1}\nC. {2}\nAnswer: B",
    "brackets": "{q} (a) {0} (b) {1} (c) {2}",
    "numbers": "{q}\n1) {0}\n2) {1}\n3) {2}",
    "plain": "{q}\n{0}\n{1}\n{2}",
    "answer first": "{a}\n\nQuestion: {q}",
    "together": "{q} {a}",
}


@pytest.mark.parametrize("rendering", RENDERINGS)
def test_a_question_too_short_by_itself_is_found_as_prompts_write_it_on(tmp_path: Path, rendering: str) -> None:
    query, choices = "What is heavier?", ["a litre of milk", "a litre of mercury", "a litre of water"]
    text = RENDERINGS[rendering].format(*choices, q=query, a=choices[1])
    other = RENDERINGS[rendering].format("a cat", "a dog", "a cow", q=query, a="a dog")
    write(tmp_path, [f"{FILLER}\n{text}\n{FILLER}", query, f"{FILLER}\n{other}"], {"m": [(query, choices, 1)]})
    assert [count > 0 for count, _ in signals(run(tmp_path))] == [True, False, False]


@pytest.mark.parametrize(
    ("query", "planted"),
    [
        ("Roof work: A man sits on a wet roof. He", "A man sits on a wet roof. He"),
        (
            "It rained all day. Nobody went out.\nQuestion: why did nobody leave the house?\nAnswer:",
            "Why did nobody leave the house?",
        ),
        ("Where do the old herons sleep?\nA. in reeds\nB. in trees\nAnswer:", "Where do the old herons sleep?"),
    ],
)
def test_a_query_is_found_without_what_stands_around_it(tmp_path: Path, query: str, planted: str) -> None:
    write(tmp_path, [f"{FILLER} {planted} {FILLER}"], {"m": [(query, ["B"], 0)]})
    assert signals(run(tmp_path))[0][0] >= 1


def test_a_text_that_must_be_normalised_first_is_found_once(tmp_path: Path) -> None:
    question = "Où vont les hérons de la rivière après les premières gelées de l'année à Orléans et à Bâle?"
    decomposed = question.replace("é", "e\u0301").replace("è", "e\u0300").replace("ù", "u\u0300")
    german = "Die Straße führt am großen Fluß entlang bis zu der Stelle an der früher die Mühle stand, heißt es"
    benchmarks: dict[str, list[Question]] = {"fr": [(question, ["au sud"], 0)], "de": [(german, ["ja"], 0)]}
    texts = [
        decomposed,
        german.replace("ß", "SS"),
        f"{FILLER} {question}",
        f"{question.replace('é', 'É')} re\u0301union",
    ]
    write(tmp_path, texts, benchmarks)
    count = len(re.findall(r"\w+", question)) - 12
    found = signals(run(tmp_path))
    assert found[0] == found[2] == found[3] == (count, "fr")
    assert found[1] == (len(re.findall(r"\w+", german)) - 12, "de")


def test_the_same_documents_give_the_same_bytes_whatever_the_workers_and_the_shards(tmp_path: Path) -> None:
    draw = random.Random(1)
    texts = [
        FILLER * draw.randrange(3) + draw.choice([LONG + ANSWER, SHORT + " fish", "", LONG[:90]]) for _ in range(40)
    ]
    found = []
    for number, (workers, shards) in enumerate([(1, 4), (2, 4), (2, 1)]):
        write(tmp_path / str(number), texts, BENCHMARKS, shards)
        out = run(tmp_path / str(number), workers)
        files = {path.name: path.read_bytes() for path in out.path.glob("*.parquet")}
        found.append((files, signals(out), (out.path / "questions.jsonl").read_text(), out.counts))
    assert found[0] == found[1]
    assert found[0][1:] == found[2][1:]


def test_a_short_question_is_found_in_the_rows_of_data_sets(tmp_path: Path) -> None:
    choices = ["boil it", "salt it"]
    rows = [
        {"goal": "To keep fish,", "sol1": choices[0], "sol2": choices[1]},
        {"question": "To keep fish,", "choices": choices, "answer": 1},
        {"question": "To keep fish,", "choices": {"text": choices, "label": ["A", "B"]}},
    ]
    write(tmp_path, [json.dumps(row) for row in rows], {"piqa": [("To keep fish,", choices, 1)]})
    assert [names for _, names in signals(run(tmp_path))] == ["piqa"] * 3


def tuples_of_words(text: str, n: int) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.casefold())
    return {tuple(words[at : at + n]) for at in range(len(words) - n + 1)}


TEXT = st.lists(st.sampled_from(["a", "b", "C", "d,", "e\n", "b_a", "a\u00ada"]), max_size=30).map(" ".join)


@pytest.mark.shadow(
    "tasks.filter.contamination.kernels.gather_keys",
    "tasks.filter.contamination.kernels.fill",
    "tasks.filter.contamination.kernels.find",
)
@settings(max_examples=60)
@given(st.lists(TEXT, min_size=1, max_size=8), st.lists(TEXT, min_size=1, max_size=8), st.data())
def test_counts_are_those_of_sets_of_tuples(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], queries: list[str], data: st.DataObject
) -> None:
    n = data.draw(st.integers(2, 5))
    shortest = data.draw(st.integers(2, n))
    most = data.draw(st.integers(1, 4))
    folder = tmp_path_factory.mktemp("tuples")
    write(folder, texts, {"all": [(query, ["a b"], 0) for query in queries]})
    out = run(folder, ngram=n, min_words=shortest, min_answer_words=n, min_characters=0, max_documents=most)
    asked: list[list[tuple[bool, set[tuple[str, ...]]]]] = []
    config = ContaminationConfig(ngram=n, min_words=shortest, min_answer_words=n, min_characters=0)
    for question in read_questions(config, [folder / "benchmarks" / "all.jsonl"]):
        sizes = (min(n, len(re.findall(r"\w+", part.text))) for part in question.parts)
        asked.append([(p.asks, tuples_of_words(p.text, size)) for p, size in zip(question.parts, sizes, strict=True)])
    wanted = {gram for found in asked for _, grams in found for gram in grams}
    lengths = range(shortest, n + 1)
    held = [
        set().union(*(tuples_of_words(text, size) for text in (each, plain(each)) for size in lengths)) & wanted
        for each in texts
    ]
    rare = {gram for gram in wanted if sum(gram in grams for grams in held) <= most}
    whole = [{g for found in asked for asks, grams in found if asks and grams <= has for g in grams} for has in held]
    counted = [has & (rare | of_queries) for has, of_queries in zip(held, whole, strict=True)]
    assert [count for count, _ in signals(out)] == [len(grams) for grams in counted]
    everywhere = set().union(*counted)
    for row, found in zip(questions(out).values(), asked, strict=True):
        mine = {gram for _, grams in found for gram in grams}
        shares = [(len(grams & everywhere), len(grams)) for _, grams in found]
        best = max(shares, key=lambda pair: pair[0] / pair[1], default=(0, 0))
        assert row == {"ngrams": best[1], "found": best[0], "documents": sum(bool(mine & has) for has in counted)}


BAD = [
    "",
    "x" * 1_000_000,
    "河流发源于山中" * 1000,
    "يبدأ النهر في التلال " * 100,
    "😀" * 1000,
    "same line\n" * 100_000,
    "\x00\x1b[0m",
]


def test_bad_text_is_measured(tmp_path: Path) -> None:
    write(tmp_path, [*BAD, "same line " * 100_000 + LONG], {**BENCHMARKS, "empty": []})
    out = run(tmp_path)
    assert [count for count, _ in signals(out)[:-1]] == [0] * len(BAD)
    assert signals(out)[-1][0] == len(LONG.split()) - 12


def test_more_matches_than_there_was_room_for_are_all_counted(tmp_path: Path) -> None:
    draw = random.Random(5)
    text = " ".join(f"w{draw.randrange(10_000)}" for _ in range(6000))
    write(tmp_path, [text, text[: len(text) // 2]], {"book": [(text, ["x"], 0)]})
    assert signals(run(tmp_path))[0] == (6000 - 12, "book")
    assert 2900 < signals(run(tmp_path, name="again"))[1][0] < 3100


def test_real_questions_are_found_in_the_benchmark_itself_and_nowhere_else(
    tmp_path: Path, shared_data: Callable[[str], Path]
) -> None:
    with gzip.open(shared_data("pretrain/sotu") / "docs.jsonl.gz", "rt") as lines:
        speeches = [json.loads(line)["text"] for _, line in zip(range(20), lines, strict=False)]
    with (shared_data("eval/gsm8k") / "test.jsonl").open() as lines:
        rows = [json.loads(line) for _, line in zip(range(200), lines, strict=False)]
    asked: list[Question] = [(row["question"], [row["answer"]], 0) for row in rows]
    texts = [*speeches, *(row["question"] for row in rows)]
    write(tmp_path, texts, {"gsm8k": asked})
    found = [count for count, _ in signals(run(tmp_path))]
    assert found[: len(speeches)] == [0] * len(speeches)
    assert sum(count > 0 for count in found[len(speeches) :]) >= 0.98 * len(asked)


def test_a_shortest_question_longer_than_an_ngram_is_refused() -> None:
    with pytest.raises(ValidationError, match="min_words 9 is more than ngram 8"):
        ContaminationConfig(ngram=8, min_words=9)
    with pytest.raises(ValidationError, match="min_answer_words 5 is less than min_words 6"):
        ContaminationConfig(min_answer_words=5)
