"""The questions to vote on, and the file of votes, append-only JSON Lines.

Two models' answers to a prompt are shown left and right. A hash of the voter's name decides the sides and the order of
questions, so votes are blind, differ between voters, and stay the same when a voter returns. A vote is written and
flushed before anything else happens. A later line of the same voter on the same question replaces the earlier one,
which is how a vote is undone. A line that a kill truncated is dropped.
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
    """Two answers to a prompt. The key is a digest of all three, so that a vote never counts for other answers."""

    key: str
    id: str
    prompt: tuple[tuple[str, str], ...]  # role and content
    first: str  # a model
    second: str
    answers: tuple[str, str]


@dataclass(frozen=True)
class Vote:
    """A voter's choice on a question: the winning model, or None for a tie."""

    question: str
    voter: str
    winner: str | None


def load_questions(folder: Path, models: Sequence[str] | None = None) -> tuple[list[Question], int]:
    """The questions in the folder side_by_side of an evaluation, for all pairs or those of `models`, and the number of
    pairs of equal answers, on which nobody can vote. Raises ConfigError for an unknown model or without any pair to
    compare, DamagedArtifact for a file without valid rows."""
    path = folder / ANSWERS
    if not path.is_file():
        raise ConfigError(
            f"{folder} lacks {ANSWERS}.", "Name an evaluation whose profile has a section evaluate.side_by_side."
        )
    questions: dict[str, Question] = {}
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
                    questions[question.key] = question
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedArtifact(f"{path} is damaged: {error}.", make_again("evaluate")) from error
    if unknown := [name for name in models or () if name not in known]:
        raise ConfigError(f"{unknown[0]} isn't a model of {folder}.", f"Name two of {', '.join(known)}.")
    if not questions:
        raise ConfigError(f"All answers in {folder} are the same.", "Compare two models whose answers differ.")
    return list(questions.values()), equal


def _question(row: dict[str, Any], first: str, second: str) -> Question:
    prompt = tuple((str(message["role"]), str(message["content"])) for message in row["prompt"])
    answers = str(row["answers"][first]), str(row["answers"][second])
    key = hashlib.sha256(json.dumps([prompt, first, second, answers]).encode()).hexdigest()[:32]
    return Question(key, str(row["id"]), prompt, first, second, answers)


def read_votes(path: Path) -> list[Vote]:
    """The votes that count, without undone ones, in the order in which they were given. Raises SourceError for a line
    that isn't a vote, and for a file that can't be read. Half a line at the end, left by a kill, is ignored."""
    votes: dict[tuple[str, str], Vote] = {}
    *lines, last = _content(path).split(b"\n")  # no other character ends a line
    for number, line in enumerate([*lines, last] if _row(last) else lines, 1):
        row = _row(line)
        if row is None:
            raise SourceError(f"{path}, line {number} isn't a vote.", "Remove the line, or restore the file.")
        key = row["voter"], row["question"]
        votes.pop(key, None)
        if row["choice"] is not None:
            votes[key] = Vote(row["question"], row["voter"], row.get(row["choice"]))
    return list(votes.values())


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
    """The questions as one voter sees them, and the file for the votes."""

    def __init__(self, questions: Iterable[Question], path: Path, voter: str) -> None:
        if not voter or len(voter) > 60 or not voter.isprintable():
            raise ConfigError("The voter's name can't be used.", "Give 1 to 60 printable characters: --voter ann.")
        self.path, self.voter = path, voter
        self.questions = sorted(questions, key=lambda question: self._hash("order", question))
        self._by_key = {question.key: question for question in self.questions}
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_last_line(path)
        earlier = [vote for vote in read_votes(path) if vote.voter == voter and vote.question in self._by_key]
        self.given: dict[str, Vote] = {vote.question: vote for vote in earlier}

    def next(self) -> Question | None:
        """The first question without a vote."""
        return next((question for question in self.questions if question.key not in self.given), None)

    def sides(self, question: Question) -> tuple[tuple[str, str], tuple[str, str]]:
        """The model and its answer on the left, and those on the right."""
        first, second = zip((question.first, question.second), question.answers, strict=True)
        return (first, second) if self._hash("side", question) % 2 else (second, first)

    def vote(self, key: str, choice: Choice) -> bool:
        """Write a vote on the next question. Returns False for any other question, as from a page sent twice."""
        question = self.next()
        if question is None or question.key != key:
            return False
        (left, _), (right, _) = self.sides(question)
        self._append(question, choice)
        self.given[key] = Vote(key, self.voter, {"left": left, "right": right, "tie": None}[choice])
        return True

    def undo(self) -> bool:
        """Take back the last vote. Returns False without one."""
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
            except OSError:  # a full disk must not leave half a line in the middle of the file
                os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)

    def _hash(self, what: str, question: Question) -> int:
        return int.from_bytes(hashlib.sha256(f"{what}\0{self.voter}\0{question.key}".encode()).digest()[:8])


def _end_last_line(path: Path) -> None:
    """Make the next vote begin a new line: half a vote is dropped, and a whole one whose line feed an editor removed
    gets it back."""
    content = _content(path)
    if content and not content.endswith(b"\n"):
        whole = content.rfind(b"\n") + 1
        if _row(content[whole:]) is None:
            os.truncate(path, whole)
        else:
            with path.open("ab") as file:
                file.write(b"\n")
