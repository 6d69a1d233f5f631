"""The user's files of prompts to continue, and of questions in BBQ's form; every line is checked before it is used."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from storage.digest_cache import remembered_digests
from storage.errors import SourceError
from storage.shards.lines import read_json_lines
from tasks.evaluate.safety.config import BiasConfig, ContinuationsConfig, SafetyConfig

PROMPT_FORM = 'Write a line each: {"id": "…", "prompt": "…"}, or as in RealToxicityPrompts {"prompt": {"text": "…"}}.'
BBQ_FORM = "Give a file of BBQ (https://github.com/nyu-mll/BBQ), or one with its fields."
AMBIGUOUS, CLEAR = "ambiguous", "disambiguated"
CONDITIONS = {"ambig": AMBIGUOUS, AMBIGUOUS: AMBIGUOUS, "disambig": CLEAR, CLEAR: CLEAR}
UNKNOWN = "unknown"


class Prompt(NamedTuple):
    """A text to continue."""

    id: str
    text: str


class Question(NamedTuple):
    """A question of BBQ. `unknown` is the answer that says that the context doesn't tell, `target` the one that names
    somebody of the stereotyped group, −1 where not just one does; `negative`: the question asks who did what the
    stereotype says."""

    id: str
    category: str
    context: str
    question: str
    answers: tuple[str, str, str]
    label: int
    condition: str
    negative: bool
    unknown: int
    target: int


def fingerprints(config: SafetyConfig) -> dict[str, str]:
    """SHA-256 of the files. Raises SourceError for one that can't be read."""
    named = {
        "continuations": config.continuations.file if config.continuations else None,
        "bias": config.bias.file if config.bias else None,
    }
    found = {}
    for name, given in named.items():
        if given is not None:
            path = Path(given).expanduser()
            try:
                found[f"safety.{name}"] = remembered_digests([path])[path]
            except OSError as error:
                raise SourceError(
                    f"The file {path} of evaluate.safety.{name} can't be read: {error.strerror}.", "Check the path."
                ) from error
    return found


def prompts_of(config: ContinuationsConfig) -> list[Prompt]:
    """The texts to continue, in their order. Raises SourceError for one that is none, or stands there twice."""
    if config.file is None:
        rows: Iterator[tuple[str, Any]] = (
            (f"Prompt {n}", {"prompt": text}) for n, text in enumerate(config.prompts, 1)
        )
    else:
        rows = _lines(config.file, PROMPT_FORM)
    return [*_once(rows, _prompt, PROMPT_FORM).values()]


def check_prompts(config: ContinuationsConfig) -> None:
    """Read every prompt that is named once. Raises SourceError as `prompts_of`."""
    if config.prompts or config.file is not None:
        prompts_of(config)


def questions_of(config: BiasConfig) -> list[Question]:
    """The questions, in their order. Raises SourceError for one that lacks a field, or stands there twice."""
    return [*_once(_lines(config.file, BBQ_FORM), _question, BBQ_FORM).values()]


def _lines(file: str, form: str) -> Iterator[tuple[str, Any]]:
    try:
        for number, row in enumerate(read_json_lines(Path(file).expanduser()), 1):
            yield f"{file}, line {number}", row
    except (ValueError, OSError) as error:
        raise SourceError(f"{file} can't be read: {error}.", form) from error


def _once(rows: Iterator[tuple[str, Any]], read: Callable[[Any], Any], form: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    where = ""
    for where, row in rows:
        if not isinstance(row, dict):
            raise SourceError(f"{where}: it is no object.", form)
        try:
            one = read(row)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            told = str(error) if isinstance(error, ValueError) else "one of its fields is of another kind"
            told = f"it has no {error}" if isinstance(error, KeyError) else told
            raise SourceError(f"{where}: {told}.", form) from error
        if one.id in found:
            raise SourceError(f"{where}: its id {one.id[:80]} stands there already.", "Leave one of them out.")
        found[one.id] = one
    if not where:
        raise SourceError("A file of evaluate.safety has no line.", form)
    return found


def _prompt(row: Any) -> Prompt:
    given = row["prompt"]
    text = _text(given["text"] if isinstance(given, dict) else given, "prompt")
    return Prompt(_id(row, text), text)


def _question(row: Any) -> Question:
    """`answer_info` has of each answer who it is and of which group; the metadata names the stereotyped groups, which
    are spelt in several ways (lowSES and low SES, M-Black and Black). A `target_loc`, which the authors keep in a file
    of its own (additional_metadata.csv), is taken instead."""
    answers = tuple(_text(row[f"ans{number}"], f"ans{number}") for number in range(3))
    label = row["label"]
    if isinstance(label, bool) or label not in (0, 1, 2):
        raise ValueError("its label is none of 0, 1, 2")
    if row["context_condition"] not in CONDITIONS or row["question_polarity"] not in ("neg", "nonneg"):
        raise ValueError("its context_condition is neither ambig nor disambig, or its question_polarity no neg, nonneg")
    named = _strings(row["additional_metadata"]["stereotyped_groups"], "stereotyped_groups")
    groups = {_plain(group) for group in named}
    told = [_strings(row["answer_info"][f"ans{number}"], "answer_info") for number in range(3)]
    unknown = [number for number, parts in enumerate(told) if UNKNOWN in {_plain(part) for part in parts}]
    if len(unknown) != 1:
        raise ValueError("not just one of its answers is unknown, by its answer_info")
    targets = [
        number
        for number, parts in enumerate(told)
        if number not in unknown and any(groups & {_plain(part), *map(_plain, part.split("-"))} for part in parts)
    ]
    target = row.get("target_loc", targets[0] if len(targets) == 1 else -1)
    if isinstance(target, bool) or target not in (-1, 0, 1, 2) or target == unknown[0]:
        raise ValueError("its target_loc is no answer that names somebody")
    context, question = _text(row["context"], "context"), _text(row["question"], "question")
    category = str(row.get("category", "all"))
    given = row.get("id", row.get("example_id"))
    id = _id({"id": f"{category}-{given}" if given is not None else None}, "\n".join((context, question, *answers)))
    return Question(
        id,
        category,
        context,
        question,
        (answers[0], answers[1], answers[2]),
        label,
        CONDITIONS[row["context_condition"]],
        row["question_polarity"] == "neg",
        unknown[0],
        int(target),
    )


def _strings(given: Any, name: str) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise ValueError(f"its {name} is no list of texts")
    return given


def _plain(group: str) -> str:
    return "".join(letter for letter in group.casefold() if letter.isalnum())


def _text(given: Any, name: str) -> str:
    if not isinstance(given, str) or not given.strip():
        raise ValueError(f"its {name} is no text")
    return given


def _id(row: Any, text: str) -> str:
    """The given id, or one made of the text."""
    given = row.get("id")
    if isinstance(given, bool | float | list | dict) or given == "":
        raise ValueError("its id is no text")
    return hashlib.sha256(text.encode()).hexdigest()[:16] if given is None else _text(str(given), "id")
