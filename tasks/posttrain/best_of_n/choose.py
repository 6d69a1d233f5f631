"""Which answers to a prompt become an instruction and a pair."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.posttrain.best_of_n.config import BestOfNConfig
from tasks.posttrain.rewards.config import ROUNDING

BELOW, UNREWARDED = "below_threshold", "no_reward"
# Reasons why a prompt gave nothing. The table lists them even with a count of 0
REASONS = (BELOW, UNREWARDED, "empty", "unfinished", "overlong", "refused")


def decision(config: BestOfNConfig, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """For the answers to a prompt: the places of the `best` and the `worst`, if each can be learned from, whether they
    are an `instruction` and a `pair`, and why the prompt gave nothing in `dropped`.

    Of equal rewards the first counts. An answer with a fault is never chosen.
    """
    whole = [place for place, one in enumerate(answers) if not one["fault"]]
    if not config.rewards and whole:
        return {"best": whole[0], "instruction": True, "pair": False, "dropped": ""}
    rewarded = {place: answers[place]["reward"] for place in whole if answers[place]["reward"] is not None}
    if not rewarded:
        faults = Counter(one["fault"] for one in answers if one["fault"])
        dropped = UNREWARDED if whole else faults.most_common(1)[0][0]
        return {"instruction": False, "pair": False, "dropped": dropped}
    best, worst = max(rewarded, key=lambda place: rewarded[place]), min(rewarded, key=lambda place: rewarded[place])
    instruction = config.threshold is None or rewarded[best] >= config.threshold - ROUNDING
    pair = rewarded[best] - rewarded[worst] >= config.gap - ROUNDING and answers[best]["text"] != answers[worst]["text"]
    dropped = "" if instruction or pair else BELOW
    return {"best": best, "worst": worst, "instruction": instruction, "pair": pair, "dropped": dropped}


def instruction_of(one: Mapping[str, Any]) -> dict[str, Any]:
    """The conversation with the best answer, in the format of `download`'s instructions."""
    return {
        "id": _made_id(one["id"]),
        "source": "best_of_n",
        "messages": [*one["prompt"], _answer(one["answers"][one["best"]])],
    }


def pair_of(one: Mapping[str, Any]) -> dict[str, Any]:
    """The best answer against the worst, in the format of `download`'s preferences."""
    chosen, rejected = ([_answer(one["answers"][one[which]])] for which in ("best", "worst"))
    return {
        "id": _made_id(one["id"]),
        "source": "best_of_n",
        "prompt": one["prompt"],
        "chosen": chosen,
        "rejected": rejected,
    }


def best_of(rewards: Sequence[float], n: int) -> float:
    """The expected best of `n` of these rewards, drawn without replacement."""
    ordered = sorted(rewards)
    total = math.comb(len(ordered), n)
    return sum(math.comb(place, n - 1) / total * reward for place, reward in enumerate(ordered))


def _answer(said: Mapping[str, Any]) -> dict[str, str]:
    return {"role": "assistant", "content": said["text"]}


def _made_id(row_id: str) -> str:
    """A new id, so that a share of what is made is held out by its ids too."""
    return hashlib.sha256(f"best of n {row_id}".encode()).hexdigest()[:32]
