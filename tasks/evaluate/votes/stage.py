"""The stage `votes`: people's preferences on models' answers, in the form in which `download` reads preferences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from storage.artifact import Artifact
from storage.errors import EmptyOutput
from storage.shards.lines import write_json_lines
from tasks.evaluate.votes.ballot import Question, load_questions, read_votes
from tasks.evaluate.votes.config import VotesConfig, fingerprint
from tasks.evaluate.votes.results import by_question, majority
from tasks.stage import stage
from tasks.stage.output import Output

PAIRS = Path("preferences") / "pairs.jsonl"


@stage(version=1, sources=fingerprint)
def votes(config: VotesConfig, compared: Artifact, out: Output) -> None:
    """Write preferences/pairs.jsonl, with `prompt`, `chosen` and `rejected` as messages, and votes.jsonl, with the
    votes on each question. `compared` is the part side_by_side of the evaluation that was voted on. Votes on other
    answers are left out.

    The majority of voters decides. Ties, and pairs with an empty answer or one with a NUL, are left out and counted.
    """
    questions, _ = load_questions(compared.path)
    voted, strange = by_question(questions, read_votes(Path(config.file).expanduser()))
    asked = [question for question in questions if question.key in voted]
    left_out: Counter[str] = Counter()
    pairs = []
    for question in asked:
        winner = majority(voted[question.key])
        if winner is None:
            left_out["tie" if None in voted[question.key] else "voters_disagree"] += 1
        elif not all(answer.strip() and "\0" not in answer for answer in question.answers):
            left_out["no_text"] += 1  # `download` would quarantine it
        else:
            pairs.append(_pair(question, winner))
    if not asked:
        raise EmptyOutput(
            f"{config.file} lacks votes on these answers ({strange:,} are on others).",
            "Vote first: gristmill vote REF.",
        )
    write_json_lines(out.path / "votes.jsonl", _rows(asked, voted))
    write_json_lines(out.path / PAIRS, pairs)
    out.count(votes=sum(map(len, voted.values())), votes_on_others=strange)
    out.account(what="questions", documents_in=len(asked), kept=len(pairs), removed=left_out)
    out.count(summary=f"{len(pairs):,} preferences from {len(asked):,} questions, {left_out['tie']:,} ties")


def _rows(asked: Sequence[Question], voted: Mapping[str, Sequence[str | None]]) -> list[dict[str, Any]]:
    return [
        {"id": question.id, "first": question.first, "second": question.second, "winners": voted[question.key]}
        for question in asked
    ]


def _pair(question: Question, winner: str) -> dict[str, Any]:
    one, other = question.answers if winner == question.first else question.answers[::-1]
    return {
        "id": question.key,
        "source": "votes",
        "prompt": [{"role": role, "content": content} for role, content in question.prompt],
        "chosen": [{"role": "assistant", "content": one}],
        "rejected": [{"role": "assistant", "content": other}],
    }
