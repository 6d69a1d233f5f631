"""`python -m benchmarks.filter.contamination_recall DATA`: which renderings of a benchmark question are found, and what
is found in text that has none.

Real questions are planted in real documents, one each, in every rendering below; each is looked for in an index of all
questions of its half. The options were chosen on the benchmarks of TUNED alone; HELD_OUT was looked at at the end.
`paraphrase` has every third word left out and is not to be found. False alarms are documents of text that nothing was
planted in; each is printed with what was found, to be judged by eye: a question that was written from such a text is
rightly found there. DATA is a folder with eval/olmo_hf and pretrain, as JSON Lines of the data sets' own rows.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage.shards.lines import read_json_lines
from tasks.download.benchmarks import questions
from tasks.filter.contamination.config import ContaminationConfig
from tasks.filter.contamination.measure import Matcher
from tasks.filter.contamination.questions import Index, index_questions, phrase, read_questions

TUNED = ("arc_easy", "hellaswag", "piqa", "basic_skills")
HELD_OUT = ("openbookqa", "sciq", "commonsense_qa", "arc_challenge", "mmlu")
EACH = 200  # questions of a benchmark
TEXTS = (
    "wiki_vital_en",
    "standard_ebooks",
    "kids_books",
    "peps",
    "sotu",
    "factbook",
    "wikitext2_valid_test",
    "c4_demo",
)
Row = dict[str, Any]
LETTERS = "ABCDEFGHIJ"


def _bare(row: Row) -> tuple[str, list[str], str]:
    query = re.sub(r"^\s*Question:\s*|\s*\bAnswer:\s*$", "", row["query"])
    choices = [choice.strip() for choice in row["choices"]]
    return query, choices, choices[row["gold"]]


def _listed(row: Row, label: Callable[[int], str], between: str) -> str:
    query, choices, _ = _bare(row)
    return query + between + between.join(label(number) + choice for number, choice in enumerate(choices))


def _html(row: Row) -> str:
    query, choices, answer = _bare(row)
    items = "".join(f"<li>{choice}</li>" for choice in choices)
    return f"<p><b>{query}</b></p><ol>{items}</ol><p>Correct: {answer}</p>"


def _markdown(row: Row) -> str:
    query, choices, answer = _bare(row)
    return f"### {query}\n\n" + "".join(f"- [{' x'[c == answer]}] {c}\n" for c in choices)


def _wrapped(row: Row) -> str:
    words = f"{_bare(row)[0]} {_bare(row)[2]}".split()
    return "\n".join("> " + " ".join(words[at : at + 5]) for at in range(0, len(words), 5))


def _asked(row: Row) -> str:
    return f"{_bare(row)[0]} {_bare(row)[2]}"


def _every(row: Row, number: int, put: Callable[[int, str], str]) -> str:
    """Query and answer, with every so-manieth word as `put(index, word)` gives it."""
    return " ".join(put(n, word) if n % number == number - 1 else word for n, word in enumerate(_asked(row).split()))


def _in_the_middle(sign: str) -> Callable[[int, str], str]:
    return lambda _, word: f"{word[: len(word) // 2]}{sign}{word[len(word) // 2 :]}" if len(word) > 3 else word


def _numbered(row: Row) -> str:
    words = _asked(row).split()
    return "\n".join(f"{at // 6 + 1:4} {' '.join(words[at : at + 6])}" for at in range(0, len(words), 6))


def _json_in_json(row: Row) -> str:
    query, choices, answer = _bare(row)
    return json.dumps({"text": json.dumps({"prompt": f"Question:\n{query}\n{answer}", "all": choices})})


def _wide(row: Row) -> str:
    return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in _asked(row))


def _paraphrase(row: Row) -> str:
    return " ".join(w for n, w in enumerate(f"{_bare(row)[0]} {_bare(row)[2]}".split()) if n % 3 != 2)


RENDERINGS: dict[str, Callable[[Row], str]] = {
    "query and answer": _asked,
    "Question: … Answer: …": lambda row: f"Question: {_bare(row)[0]}\nAnswer: {_bare(row)[2]}",
    "Q: … A: …": lambda row: f"Q: {_bare(row)[0]}\n\nA: {_bare(row)[2]}",
    "capitals": lambda row: f"Question: {_bare(row)[0]}\nAnswer: {_bare(row)[2]}".upper(),
    "no punctuation": lambda row: re.sub(r"[^\w\s]+", " ", f"{_bare(row)[0]} {_bare(row)[2]}"),
    "quoted, 5 words a line": _wrapped,
    "options A. B.": lambda row: (
        f"{_listed(row, lambda n: f'{LETTERS[n]}. ', chr(10))}\nAnswer: {LETTERS[row['gold']]}"
    ),
    "options (a) (b)": lambda row: _listed(row, lambda n: f"({LETTERS[n].lower()}) ", " "),
    "options 1) 2)": lambda row: _listed(row, lambda n: f"{n + 1}) ", "\n"),
    "options alone": lambda row: _listed(row, lambda n: "", "\n"),
    "Markdown check list": _markdown,
    "HTML list": _html,
    "JSON": lambda row: json.dumps({"question": _bare(row)[0], "choices": _bare(row)[1], "answer": row["gold"]}),
    "JSON in JSON": _json_in_json,
    "JSON, a word a line": lambda row: json.dumps("\n".join(_asked(row).split())),
    "JSON, PIQA's keys": lambda row: json.dumps(
        {"goal": _bare(row)[0]} | {f"sol{n}": choice for n, choice in enumerate(_bare(row)[1], 1)}
    ),
    "JSON, the hub's keys": lambda row: json.dumps(
        {"question": _bare(row)[0], "choices": {"text": _bare(row)[1], "label": [*LETTERS[: len(_bare(row)[1])]]}}
    ),
    "soft hyphens": lambda row: _every(row, 2, _in_the_middle("\u00ad")),
    "zero-width spaces": lambda row: _every(row, 2, _in_the_middle("\u200b")),
    "_ for blanks": lambda row: "_".join(_asked(row).split()),
    "%20 for blanks": lambda row: "%20".join(_asked(row).split()),
    "entities": lambda row: _asked(row).replace(" ", "&nbsp;").replace("'", "&rsquo;").replace("e", "&#101;"),
    "tags around words": lambda row: _every(row, 4, lambda _, word: f'<a href="/wiki/{word}">{word}</a>'),
    "tags within words": lambda row: _every(row, 3, lambda _, word: f"<b>{word[:1]}</b>{word[1:]}"),
    "footnotes [1]": lambda row: _every(row, 5, lambda n, word: f"{word}[{n}]"),
    "footnotes ¹": lambda row: _every(row, 5, lambda n, word: f"{word}{'¹²³⁴⁵'[n % 5]}"),
    "hyphens at lines' ends": lambda row: _every(row, 5, _in_the_middle("-\n")),
    "line numbers": _numbered,
    "full width": _wide,
    "answer first": lambda row: f"{_bare(row)[2]}\n\nThat answers: {_bare(row)[0]}",
    "query only": lambda row: _bare(row)[0],
    "answer only": lambda row: _bare(row)[2],
    "paraphrase": _paraphrase,
}


def held_out(data: Path, name: str) -> list[Row]:
    """The questions of a data set in its own rows, in the form of `download`, ordered by hash."""
    folder = data / "eval" / "olmo_hf"
    sets = {"arc_challenge": "ai2_arc__ARC-Challenge", "commonsense_qa": "tau__commonsense_qa"}
    paths = (
        [*folder.glob("mmlu/*_test.jsonl")] if name == "mmlu" else [folder / f"{sets.get(name, name)}_validation.jsonl"]
    )
    rows = [row for path in sorted(paths) for row in read_json_lines(path)]
    found = [made for number, row in enumerate(rows) if (made := _row(name, number, row))]
    order = sorted(found, key=lambda row: hashlib.sha256(f"{name} {row['query']}".encode()).hexdigest())
    return order[:EACH]


def _row(name: str, number: int, row: Row) -> Row | None:
    if name == "sciq":
        choices = [row["correct_answer"], *(row[f"distractor{n}"] for n in (1, 2, 3))]
        query, gold = row["question"], 0
    elif name == "mmlu":
        query, choices, gold = row["question"], row["choices"], row["answer"]
    else:
        query, choices = row.get("question") or row["question_stem"], row["choices"]["text"]
        if row["answerKey"] not in row["choices"]["label"]:
            return None
        gold = row["choices"]["label"].index(row["answerKey"])
    return {"id": str(number), "query": f"Question: {query}\nAnswer:", "choices": choices, "gold": gold}


def carriers(data: Path) -> list[str]:
    """Documents in which questions are planted: leads of an encyclopedia of 100 words and more."""
    with gzip.open(data / "pretrain" / TEXTS[0] / "docs.jsonl.gz", "rt") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    return [text for text in texts if len(text.split()) >= 100]


def plant(text: str, planted: str) -> str:
    """Amid a text."""
    middle = text.find(" ", len(text) // 2)
    return f"{text[:middle]}\n\n{planted}\n\n{text[middle:]}"


def recall(rows: dict[str, list[Row]], texts: list[str], index: Index) -> dict[str, dict[str, int]]:
    """By rendering and benchmark, the planted documents in which the planted question's n-grams are found."""
    found: dict[str, dict[str, int]] = {}
    place = {(question.benchmark, question.id): number for number, question in enumerate(index.questions)}
    matcher = Matcher(index)
    for name, render in RENDERINGS.items():
        for benchmark, asked in rows.items():
            documents = [plant(texts[n % len(texts)], render(row)) for n, row in enumerate(asked)]
            held, ngrams = matcher.match(pa.array(documents))
            at, parts = index.held.expand(held, ngrams)
            pairs = {*zip(at.tolist(), index.owners[parts].tolist(), strict=True)}
            wanted = (place[benchmark, row["id"]] for row in asked)
            found.setdefault(name, {})[benchmark] = sum((n, q) in pairs for n, q in enumerate(wanted))
    return found


def alarms(data: Path, index: Index, config: ContaminationConfig) -> Iterator[tuple[str, int, list[str]]]:
    """Of each text that nothing was planted in: its name, its documents, and what was found there."""
    for name in TEXTS:
        with gzip.open(data / "pretrain" / name / "docs.jsonl.gz", "rt") as lines:
            texts = [json.loads(line)["text"] for line in lines]
        rows, ngrams = Matcher(index).match(pa.array(texts))
        first = dict(zip(reversed(rows.tolist()), reversed(ngrams.tolist()), strict=True))
        yield name, len(texts), [_told(index, config, ngram) for _, ngram in sorted(first.items())]


def _told(index: Index, config: ContaminationConfig, ngram: int) -> str:
    part = int(index.held.members[index.held.ends[ngram] - 1])
    return f"{index.questions[index.owners[part]].benchmark}, {index.parts[part].name}: {phrase(config, index, ngram)}"


def main() -> None:
    """Print a table of recall by rendering and benchmark, and the false alarms."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--half", choices=("tuned", "held-out"), default="held-out")
    parser.add_argument("--folder", type=Path, required=True, help="where the questions are written")
    options = parser.parse_args()
    config = ContaminationConfig()
    tuned = options.half == "tuned"
    rows = (
        {name: questions(name, EACH) for name in TUNED} if tuned else {n: held_out(options.data, n) for n in HELD_OUT}
    )
    folder = options.folder / options.half
    folder.mkdir(parents=True, exist_ok=True)
    for name, asked in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    index = index_questions(config, read_questions(config, sorted(folder.glob("*.jsonl"))))
    print("| rendering |", " | ".join(rows), "| all |\n|" + "---|" * (len(rows) + 2))
    for name, found in recall(rows, carriers(options.data), index).items():
        print(f"| {name} |", " | ".join(map(str, found.values())), f"| {sum(found.values())} of {EACH * len(rows)} |")
    print(f"\n{index.size:,} n-grams\n")
    for name, documents, told in alarms(options.data, index, config):
        print(f"{name}: {len(told)} of {documents:,} documents", *told, sep="\n  ")


if __name__ == "__main__":
    main()
