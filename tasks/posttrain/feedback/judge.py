"""Sampled answers, compared in pairs by a judge: the best is preferred to the worst.

Judges favour the first answer (Zheng et al. 2023), so each two are shown in both orders, and an answer wins only if the
judge names it in both. The wins decide which answer is the best and which the worst. These two become a pair if the
judge agreed with itself on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from tasks.endpoint.reply import Reply
from tasks.posttrain.feedback import ask
from tasks.posttrain.feedback.config import FeedbackConfig
from tasks.posttrain.feedback.prompts import Transcript, seed_of
from tasks.posttrain.feedback.speaker import Speaker

AGREED, DISAGREED = "agreed", "orders_disagree"


def judge_answers(
    config: FeedbackConfig, rows: Sequence[Transcript], answerer: Speaker, judge: Speaker
) -> list[Transcript]:
    """The transcripts of prompts: `answers`, `questions` with the reply to each, `wins`, and `chosen` and `rejected`,
    or in `dropped` the reason why they gave no pair."""
    seeds = [seed_of(row["id"], config.seed) for row in rows]
    sampled = answerer.sample([row["prompt"] for row in rows], config.samples, seeds)
    transcripts = [{**row, **_answers(replies)} for row, replies in zip(rows, sampled, strict=True)]
    questions = [
        (one, first, second)
        for one in transcripts
        if not one["dropped"]
        for a, b in combinations(range(len(one["answers"])), 2)
        for first, second in ((a, b), (b, a))
    ]
    requests = [
        ask.comparison(one["prompt"], one["answers"][first], one["answers"][second], one["principle"])
        for one, first, second in questions
    ]
    for (one, first, second), messages, reply in zip(questions, requests, judge.compare(requests), strict=True):
        one["questions"].append(
            {"A": first, "B": second, "asked": messages[-1]["content"], "said": reply.text, "fault": reply.fault}
        )
    for one in transcripts:
        if not one["dropped"]:
            one |= _decision(one["answers"], one["questions"])
    return transcripts


def verdicts(questions: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int], tuple[str, int]]:
    """For each two answers, whether the judge agreed with itself, or why not, and the answer it named (or −1)."""
    verdict_of_pair: dict[tuple[int, int], tuple[str, int]] = {}
    for one, turned in zip(questions[::2], questions[1::2], strict=True):
        fault = one["fault"] or turned["fault"]
        named = {order[order["said"]] for order in (one, turned)} if not fault else set()
        state = fault or (AGREED if len(named) == 1 else DISAGREED)
        verdict_of_pair[one["A"], one["B"]] = (state, named.pop() if state == AGREED else -1)
    return verdict_of_pair


def _answers(replies: Sequence[Reply]) -> Transcript:
    """The distinct answers to compare, and the reason if they are fewer than two."""
    answers = list(dict.fromkeys(reply.text for reply in replies if not reply.fault))
    faults = Counter(reply.fault for reply in replies if reply.fault)
    why = faults.most_common(1)[0][0] if faults else "equal_answers"
    dropped = "" if len(answers) > 1 else why
    return {"answers": answers, "answered": bool(answers), "questions": [], "dropped": dropped}


def _decision(answers: Sequence[str], questions: Sequence[Mapping[str, Any]]) -> Transcript:
    compared = verdicts(questions)
    wins = [0.0] * len(answers)
    for (a, b), (state, winner) in compared.items():
        for one in (a, b):
            wins[one] += float(one == winner) if state == AGREED else 0.5
    best, worst = wins.index(max(wins)), wins.index(min(wins))
    if best == worst:  # all have as many wins: they beat each other in a circle, or no comparison agreed
        states = Counter(state for state, _ in compared.values() if state != AGREED)
        return {"wins": wins, "dropped": states.most_common(1)[0][0] if states else "circular"}
    state, winner = compared[min(best, worst), max(best, worst)]
    if state != AGREED or winner != best:
        return {"wins": wins, "dropped": state if state != AGREED else "circular"}
    return {"wins": wins, "chosen": answers[best], "rejected": answers[worst]}
