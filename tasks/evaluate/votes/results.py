"""The results of votes: winners for each question, and win rates over them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from tasks.evaluate.side_by_side.items import Item
from tasks.evaluate.side_by_side.rates.standings import Pair, Standings, standings
from tasks.evaluate.votes.ballot import Question, Vote


def by_question(questions: Sequence[Question], votes: Iterable[Vote]) -> tuple[dict[str, list[str | None]], int]:
    """The votes on each question with any, by its key, and the number of other votes: on unknown questions, or for a
    model that isn't in the question, as in a damaged line."""
    known = {question.key: (question.first, question.second, None) for question in questions}
    winners: dict[str, list[str | None]] = defaultdict(list)
    strange = 0
    for vote in votes:
        if vote.winner in known.get(vote.question, ()):
            winners[vote.question].append(vote.winner)
        else:
            strange += 1
    return dict(winners), strange


def majority(winners: Sequence[str | None]) -> str | None:
    """The model with the most votes, not counting ties. None if neither is ahead."""
    counted = Counter(winner for winner in winners if winner is not None).most_common(2)
    ahead = bool(counted) and (len(counted) == 1 or counted[0][1] > counted[1][1])
    return counted[0][0] if ahead else None


def items_by_pair(questions: Sequence[Question], votes: Iterable[Vote]) -> dict[Pair, list[Item]]:
    """An item for each vote."""
    voted, _ = by_question(questions, votes)
    items: dict[Pair, list[Item]] = defaultdict(list)
    for question in questions:
        lengths = [len(answer) for answer in question.answers]
        for winner in voted.get(question.key, ()):
            score = 0.5 if winner is None else float(winner == question.first)
            items[question.first, question.second].append(Item(question.id, score, lengths[0], lengths[1]))
    return dict(items)


def standings_of(questions: Sequence[Question], votes: Iterable[Vote]) -> Standings | None:
    """The standings by people's votes, or None without votes."""
    compared = items_by_pair(questions, votes)
    return standings(compared, baseline=None, resamples=1000, seed=0) if compared else None
