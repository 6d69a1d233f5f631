"""What is voted on, and the file of votes: JSON Lines that only grow.

Of each two models' answers to a prompt one stands left and one right, and a hash of the voter's name draws which, and
the order of the questions: it is blind, another one for each voter, and the same when the voter comes back. A vote is
written and flushed before anything else happens. A later line of the same voter on the same question replaces the
earlier one; that is how a vote is undone. A line that a kill cut short is dropped.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from storage.errors import ConfigError, DamagedArtifact, SourceError, make_again
from storage.shards.lines import as_line, parse_json, read_json_lines

ANSWERS = "answers.jsonl"
CHOICES = ("left", "right", "tie")
Choice = Literal["left", "right", "tie"]
FIELDS = ("question", "voter", "left", "right")


@dataclass(frozen=True)
class Question:
    """Two answers to a prompt; the key is a digest of all three, so that a vote is never taken for one on others."""

    key: str
    id: str
    prompt: tuple[tuple[str, str], ...]  # role and content
    first: str  # a model
    second: str
    answers: tuple[str, str]


@dataclass(frozen=True)
class Vote:
    """What a voter said of a question: the model that won, None for a tie."""

    question: str
    voter: str
    winner: str | None


def load_questions(folder: Path, models: Sequence[str] | None = None) -> tuple[list[Question], int]:
    """The questions of the folder side_by_side of an evaluation, of all pairs or of those of `models`; and how many
    pairs of answers are equal, on which nobody can vote. Raises ConfigError for a model that there is not or where
    there is nothing to compare, DamagedArtifact for a file that is none."""
    path = folder / ANSWERS
    if not path.is_file():
        raise ConfigError(
            f"{folder} has no {ANSWERS}.", "Name an evaluation whose profile has a section evaluate.side_by_side."
        )
    found: dict[str, Question] = {}
    known: dict[str, None] = {}
    equal = 0
    try:
        for row in read_json_lines(path):
            known |= dict.fromkeys(row["answers"])
            names = [name for name in row["answers"] if models is None or name in models]
            for first, second in combinations(names, 2):
                question = _question(row, first, second)
                equal += question.answers[0] == question.answers[1]
                if question.answers[0] != question.answers[1]:
                    found[question.key] = question
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedArtifact(f"{path} is damaged: {error}.", make_again("evaluate")) from error
    if unknown := [name for name in models or () if name not in known]:
        raise ConfigError(f"{unknown[0]} is no model of {folder}.", f"Name two of {', '.join(known)}.")
    if not found:
        raise ConfigError(f"{folder} has no two answers that differ.", "Compare two models whose answers differ.")
    return list(found.values()), equal


def _question(row: dict[str, Any], first: str, second: str) -> Question:
    prompt = tuple((str(message["role"]), str(message["content"])) for message in row["prompt"])
    answers = str(row["answers"][first]), str(row["answers"][second])
    key = hashlib.sha256(json.dumps([prompt, first, second, answers]).encode()).hexdigest()[:32]
    return Question(key, str(row["id"]), prompt, first, second, answers)


def read_votes(path: Path) -> list[Vote]:
    """The votes that count, without those that were undone, in the order in which they were given. Raises SourceError
    for a line that is no vote, and for a file that can't be read; half a line at the end, left by a kill, is none."""
    found: dict[tuple[str, str], Vote] = {}
    *lines, last = _content(path).split(b"\n")  # no other character ends a line
    for number, line in enumerate([*lines, last] if _row(last) else lines, 1):
        row = _row(line)
        if row is None:
            raise SourceError(f"{path}, line {number} is no vote.", "Remove the line, or restore the file.")
        key = row["voter"], row["question"]
        found.pop(key, None)
        if row["choice"] is not None:
            found[key] = Vote(row["question"], row["voter"], row.get(row["choice"]))
    return list(found.values())


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise SourceError(f"{path} can't be read: {error.strerror}.", "Name another file of votes.") from error


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = parse_json(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in FIELDS):
        return None
    return row if "choice" in row and row["choice"] in (*CHOICES, None) and row["left"] != row["right"] else None


class Ballot:
    """The questions as one voter sees them, and the file to which the votes go."""

    def __init__(self, questions: Iterable[Question], path: Path, voter: str) -> None:
        if not voter or len(voter) > 60 or not voter.isprintable():
            raise ConfigError("The voter's name is no name.", "Give up to 60 letters: --voter ann.")
        self.path, self.voter = path, voter
        self.questions = sorted(questions, key=lambda question: self._drawn("order", question))
        self._by_key = {question.key: question for question in self.questions}
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_last_line(path)
        given = [vote for vote in read_votes(path) if vote.voter == voter and vote.question in self._by_key]
        self.given: dict[str, Vote] = {vote.question: vote for vote in given}

    def next(self) -> Question | None:
        """The first question without a vote."""
        return next((question for question in self.questions if question.key not in self.given), None)

    def sides(self, question: Question) -> tuple[tuple[str, str], tuple[str, str]]:
        """The model and its answer that stand left, and those that stand right."""
        first, second = zip((question.first, question.second), question.answers, strict=True)
        return (first, second) if self._drawn("side", question) % 2 else (second, first)

    def vote(self, key: str, choice: Choice) -> bool:
        """Write a vote on the question that comes next; False for any other, as of a page that was sent twice."""
        question = self.next()
        if question is None or question.key != key:
            return False
        (left, _), (right, _) = self.sides(question)
        self._append(question, choice)
        self.given[key] = Vote(key, self.voter, {"left": left, "right": right, "tie": None}[choice])
        return True

    def undo(self) -> bool:
        """Take back the vote that was given last; False where there is none."""
        if not self.given:
            return False
        last = list(self.given)[-1]
        self._append(self._by_key[last], None)
        del self.given[last]
        return True

    def _append(self, question: Question, choice: Choice | None) -> None:
        (left, _), (right, _) = self.sides(question)
        row = {
            "question": question.key,
            "id": question.id,
            "voter": self.voter,
            "left": left,
            "right": right,
            "choice": choice,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            before, data = os.fstat(descriptor).st_size, as_line(row).encode()
            try:
                while data:
                    data = data[os.write(descriptor, data) :]
                os.fsync(descriptor)
            except OSError:  # a full disk must leave no half of a line in the middle of the file
                os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)

    def _drawn(self, what: str, question: Question) -> int:
        return int.from_bytes(hashlib.sha256(f"{what}\0{self.voter}\0{question.key}".encode()).digest()[:8])


def _end_last_line(path: Path) -> None:
    """So that the next vote begins a line of its own: half a vote is dropped, and a whole one that lacks its line feed,
    as where an editor took it away, gets it."""
    content = _content(path)
    if content and not content.endswith(b"\n"):
        whole = content.rfind(b"\n") + 1
        if _row(content[whole:]) is None:
            os.truncate(path, whole)
        else:
            with path.open("ab") as file:
                file.write(b"\n")
