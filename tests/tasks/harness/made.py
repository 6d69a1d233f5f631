"""Data of four tasks of the harness from the sentences of the tiny model (choices, a word, a page, an answer), and
instructions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.harness.config import HarnessSource
from tasks.harness.sentences import ENGLISH, FILES
from tests.tasks.tiny_model import ANIMALS, PLACES, write_rows


def choices() -> list[dict[str, Any]]:
    """As the data set of ARC."""
    return [
        {
            "id": f"q{number}",
            "question": f"Where does the {animal} live?",
            "choices": {
                "text": [f"in the {place}" for place in PLACES[: 3 + number % 3]],
                "label": list("ABCDE")[: 3 + number % 3],
            },
            "answerKey": "ABC"[number % 3],
        }
        for number, animal in enumerate(ANIMALS[:9])
    ]


def words() -> list[dict[str, Any]]:
    """As LAMBADA: the last word of a text."""
    return [{"text": f"Nobody has seen the {animal} since it left the {PLACES[0]}"} for animal in ANIMALS[:5]]


def pages() -> list[dict[str, Any]]:
    """As WikiText: pages, one of them longer than the context of 128 tokens."""
    return [
        {"page": " ".join(f"The {animal} lives in the {place} ." for place in PLACES[: 3 + 9 * number])}
        for number, animal in enumerate(ANIMALS[:2])
    ]


def sums() -> list[dict[str, Any]]:
    """As GSM8K."""
    return [
        {"question": f"How many legs have {number} hens?", "answer": f"2 each.\n#### {2 * number}"}
        for number in range(6)
    ]


def sources(folder: Path) -> dict[str, HarnessSource]:
    """The four tasks by name, with their files."""
    made = {"arc_easy": choices(), "lambada_openai": words(), "wikitext": pages(), "gsm8k": sums()}
    splits = {
        "arc_easy": ("train", "validation", "test"),
        "lambada_openai": ("test",),
        "wikitext": ("train", "validation", "test"),
        "gsm8k": ("train", "test"),
    }
    for name, rows in made.items():
        write_rows(folder / f"{name}.jsonl", rows)
    return {
        name: HarnessSource(task=name, files={split: str(folder / f"{name}.jsonl") for split in splits[name]})
        for name in made
    }


INSTRUCTIONS: list[dict[str, Any]] = [  # as IFEval
    {"key": number, "prompt": prompt, "instruction_id_list": [told], "kwargs": [arguments]}
    for number, (told, arguments, prompt) in enumerate(
        (
            ("punctuation:no_comma", {}, "Describe a fox. Use no commas."),
            (
                "length_constraints:number_sentences",
                {"relation": "less than", "num_sentences": 3},
                "Who is the fox? Answer in less than three sentences.",
            ),
            ("language:response_language", {"language": "de"}, "Where does the fox live? Answer in German."),
            (
                "change_case:capital_word_frequency",
                {"capital_relation": "at least", "capital_frequency": 2},
                "How old is the fox? Write at least two words in capitals.",
            ),
            ("keywords:existence", {"keywords": ["fox", "hen"]}, "Where is the fox? Name the hen."),
        )
    )
]


def write_sentences(root: Path) -> Path:
    """A model of sentences as NLTK's punkt_tab, which knows one abbreviation; the folder for NLTK_DATA."""
    folder = root / ENGLISH
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / name).write_text("dr\n" if name == "abbrev_types.txt" else "")
    return root
