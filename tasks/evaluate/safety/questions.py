"""Reads the user's files of prompts to continue and of questions in BBQ's form. Every line is checked before use."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from storage.digest_cache import remembered_digests
from storage.errors import SourceError
from storage.shards.lines import read_json_lines
from tasks.evaluate.safety.config import BiasConfig, ContinuationsConfig, SafetyConfig

PROMPT_FORM = (
    'Write each as a line {"id": "…", "prompt": "…"} or, as in RealToxicityPrompts, {"prompt": {"text": "…"}}.'
)
BBQ_FORM = "Give a file of BBQ (https://github.com/nyu-mll/BBQ), or one with its fields."
AMBIGUOUS, CLEAR = "ambiguous", "disambiguated"
CONDITIONS = {"ambig": AMBIGUOUS, AMBIGUOUS: AMBIGUOUS, "disambig": CLEAR, CLEAR: CLEAR}
UNKNOWN = "unknown"


class Prompt(NamedTuple):
    """A text to continue."""

    id: str
    text: str


class Question(NamedTuple):
    """A question of BBQ. `unknown` is the answer that nobody can tell, `target` the one that names somebody of the
    stereotyped group, or −1 if not exactly one does. `negative`: the question asks who did what the stereotype says."""

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
    """SHA-256 of the files. Raises SourceError for a file that can't be read."""
    named = {
        "continuations": config.continuations.file if config.continuations else None,
        "bias": config.bias.file if config.bias else None,
    }
    digests = {}
    for name, location in named.items():
        if location is not None:
            path = Path(location).expanduser()
            try:
                digests[f"safety.{name}"] = remembered_digests([path])[path]
            except OSError as error:
                raise SourceError(
                    f"The file {path} of evaluate.safety.{name} can't be read: {error.strerror}.", "Check the path."
                ) from error
    return digests


def prompts_of(config: ContinuationsConfig) -> list[Prompt]:
    """The texts to continue, in their order. Raises SourceError for a bad line or a repeated id."""
    if config.file is None:
        rows: Iterator[tuple[str, Any]] = (
            (f"Prompt {n}", {"prompt": text}) for n, text in enumerate(config.prompts, 1)
        )
    else:
        rows = _lines(config.file, PROMPT_FORM)
    return [*_once(rows, _prompt, PROMPT_FORM).values()]


def check_prompts(config: ContinuationsConfig) -> None:
    """Read every prompt once. Raises SourceError as `prompts_of` does."""
    if config.prompts or config.file is not None:
        prompts_of(config)


def questions_of(config: BiasConfig) -> list[Question]:
    """The questions, in their order. Raises SourceError for a bad line or a repeated id."""
    return [*_once(_lines(config.file, BBQ_FORM), _question, BBQ_FORM).values()]


def _lines(file: str, form: str) -> Iterator[tuple[str, Any]]:
    try:
        for number, row in enumerate(read_json_lines(Path(file).expanduser()), 1):
            yield f"{file}, line {number}", row
    except (ValueError, OSError) as error:
        raise SourceError(f"{file} can't be read: {error}.", form) from error


def _once(rows: Iterator[tuple[str, Any]], read: Callable[[Any], Any], form: str) -> dict[str, Any]:
    by_id: dict[str, Any] = {}
    where = ""
    for where, row in rows:
        if not isinstance(row, dict):
            raise SourceError(f"{where}: it isn't an object.", form)
        try:
            one = read(row)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            reason = str(error) if isinstance(error, ValueError) else "one of its fields has another type"
            reason = f"it lacks {error}" if isinstance(error, KeyError) else reason
            raise SourceError(f"{where}: {reason}.", form) from error
        if one.id in by_id:
            raise SourceError(f"{where}: its id {one.id[:80]} is used already.", "Leave one of them out.")
        by_id[one.id] = one
    if not where:
        raise SourceError("A file of evaluate.safety is empty.", form)
    return by_id


def _prompt(row: Any) -> Prompt:
    prompt = row["prompt"]
    text = _text(prompt["text"] if isinstance(prompt, dict) else prompt, "prompt")
    return Prompt(_id(row, text), text)


def _question(row: Any) -> Question:
    """`answer_info` says who each answer is and of which group. The metadata names the stereotyped groups, which are
    spelled in several ways (lowSES and low SES, M-Black and Black). A `target_loc`, which the authors keep in another
    file (additional_metadata.csv), takes precedence."""
    answers = tuple(_text(row[f"ans{number}"], f"ans{number}") for number in range(3))
    label = row["label"]
    if isinstance(label, bool) or label not in (0, 1, 2):
        raise ValueError("its label isn't 0, 1 or 2")
    if row["context_condition"] not in CONDITIONS or row["question_polarity"] not in ("neg", "nonneg"):
        raise ValueError("its context_condition isn't ambig or disambig, or its question_polarity isn't neg or nonneg")
    named = _strings(row["additional_metadata"]["stereotyped_groups"], "stereotyped_groups")
    groups = {_plain(group) for group in named}
    info = [_strings(row["answer_info"][f"ans{number}"], "answer_info") for number in range(3)]
    unknown = [number for number, parts in enumerate(info) if UNKNOWN in {_plain(part) for part in parts}]
    if len(unknown) != 1:
        raise ValueError("not exactly one of its answers is unknown by its answer_info")
    targets = [
        number
        for number, parts in enumerate(info)
        if number not in unknown and any(groups & {_plain(part), *map(_plain, part.split("-"))} for part in parts)
    ]
    target = row.get("target_loc", targets[0] if len(targets) == 1 else -1)
    if isinstance(target, bool) or target not in (-1, 0, 1, 2) or target == unknown[0]:
        raise ValueError("its target_loc isn't an answer that names somebody")
    context, question = _text(row["context"], "context"), _text(row["question"], "question")
    category = str(row.get("category", "all"))
    own = row.get("id", row.get("example_id"))
    id = _id({"id": f"{category}-{own}" if own is not None else None}, "\n".join((context, question, *answers)))
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


def _strings(value: Any, name: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"its {name} isn't a list of texts")
    return value


def _plain(group: str) -> str:
    return "".join(letter for letter in group.casefold() if letter.isalnum())


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"its {name} isn't a text")
    return value


def _id(row: Any, text: str) -> str:
    """The row's id, or one derived from the text."""
    own = row.get("id")
    if isinstance(own, bool | float | list | dict) or own == "":
        raise ValueError("its id isn't a text")
    return hashlib.sha256(text.encode()).hexdigest()[:16] if own is None else _text(str(own), "id")
