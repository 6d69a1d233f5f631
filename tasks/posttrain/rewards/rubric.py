"""The reward of a judge behind an endpoint, by a rubric. Its opinions are kept, and never paid for twice.

A comparison is asked in both orders, since judges favour the first answer (Zheng et al. 2023).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from models.conversation import Messages
from storage.errors import ConfigError, SourceError
from tasks.endpoint.client import Asked, Endpoint, letter_of
from tasks.endpoint.paid import PaidAnswers
from tasks.endpoint.reply import Reply
from tasks.posttrain.rewards.config import JudgeReward
from tasks.posttrain.rewards.score import Answer, Failed, Value
from tasks.stage.runtime import EndpointRuntime

SCORE = re.compile(r"^[ *_#]*score[ *_]*:[ *_]*(-?\d+(?:\.\d+)?)[ *_.]*$", re.MULTILINE | re.IGNORECASE)


def rubric_of(config: JudgeReward, digest: str | None = None) -> str:
    """The text of the rubric. Raises SourceError if it can't be read or is empty, ConfigError if its digest, that of
    the artifact's key, is another."""
    path = Path(config.rubric).expanduser()
    try:
        content = path.read_bytes()
        text = content.decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(
            f"The rubric {path} of the reward {config.title} can't be read: {error}.", "Save it as UTF-8."
        ) from error
    if not text:
        raise SourceError(f"The rubric {path} of the reward {config.title} is empty.", "Write what a good answer is.")
    if digest is not None and hashlib.sha256(content).hexdigest() != digest:
        raise ConfigError(f"The rubric {path} changed during the run.", "Run again once nothing writes to it.")
    return text


class RubricJudge:
    """Answers → a number from 0 to 1. Opinions are kept in `folder`, by what was asked."""

    def __init__(self, config: JudgeReward, rubric: str, runtime: EndpointRuntime, folder: Path) -> None:
        self.config, self.rubric = config, rubric
        self.paid = PaidAnswers(folder / f"opinions-{config.title}.jsonl")
        asked = Asked(config.max_new_tokens, 0.0, 0, f"rewards.{config.title}.endpoint")
        self.endpoint = Endpoint(config.endpoint, asked, runtime, self.paid)

    def __call__(self, answers: Sequence[Answer]) -> Sequence[Value]:
        """The reward of each answer. Raises SourceError if the endpoint can't be reached or refuses all requests."""
        return self._compared(answers) if self.config.form == "compare" else self._scored(answers)

    def facts(self) -> dict[str, float]:
        """What was asked for this artifact, over all attempts to make it."""
        tokens = {name: self.paid.total(name) for name in ("prompt_tokens", "completion_tokens")}
        price = self.endpoint.runtime.price
        cost = {} if price is None else {"cost": round(price.of(*tokens.values()), 6)}
        return {"requests": len(self.paid), "requests_repeated": self.endpoint.repeated, **tokens, **cost}

    def _scored(self, answers: Sequence[Answer]) -> list[Value]:
        config = self.config
        replies = self._said([self._scoring(answer) for answer in answers])
        values: list[Value] = []
        for reply in replies:
            found = SCORE.findall(reply.text)
            score = float(found[-1]) if found else None
            if reply.fault:
                values.append(Failed(f"the opinion is {reply.fault}"))
            elif score is None or not config.lowest <= score <= config.highest:
                values.append(Failed(f"the opinion has no score from {config.lowest:g} to {config.highest:g}"))
            else:
                values.append((score - config.lowest) / (config.highest - config.lowest))
        return values

    def _compared(self, answers: Sequence[Answer]) -> list[Value]:
        """Answers that are their reference are no better and no worse: nobody is asked."""
        other = [answer for answer in answers if answer.text != answer.reference]
        asked = [self._comparison(one, one.text, one.reference) for one in other]
        asked += [self._comparison(one, one.reference, one.text) for one in other]
        wins: list[float | Failed] = []
        for place, reply in enumerate(map(letter_of, self._said(asked))):
            ours = "A" if place < len(other) else "B"
            wins.append(Failed(f"the opinion is {reply.fault}") if reply.fault else float(reply.text == ours))
        both = iter([_mean(*each) for each in zip(wins[: len(other)], wins[len(other) :], strict=True)])
        return [0.5 if answer.text == answer.reference else next(both) for answer in answers]

    def _said(self, questions: Sequence[Messages]) -> list[Reply]:
        """The reply to each question. Equal ones are asked once."""
        distinct = {str(question): question for question in questions}
        said = dict(zip(distinct, self.endpoint.say([*distinct.values()]), strict=True))
        return [said[str(question)] for question in questions]

    def _scoring(self, answer: Answer) -> Messages:
        config = self.config
        reference = f"Reference answer: {answer.reference}\n\n" if config.shows_reference else ""
        return [
            _user(
                f"{_before(answer)}Answer: {answer.text}\n\n{reference}Rubric: {self.rubric}\n\nHow good is the answer "
                f"by the rubric? End with a line `Score: N`, where N is a number from {config.lowest:g} (worst) to "
                f"{config.highest:g} (best)."
            )
        ]

    def _comparison(self, answer: Answer, first: str, second: str) -> Messages:
        return [
            _user(
                f"{_before(answer)}Answer A: {first}\n\nAnswer B: {second}\n\nRubric: {self.rubric}\n\nWhich answer is "
                "better by the rubric? Reply with A or B."
            )
        ]


def _before(answer: Answer) -> str:
    turns = "\n".join(f"{message['role']}: {message['content']}" for message in answer.prompt)
    return f"Here is a conversation:\n{turns}\n\n"


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def _mean(one: float | Failed, turned: float | Failed) -> Value:
    """1 if both orders name the answer, 0 if both name the other, else 0.5, or the failure of one of them."""
    if isinstance(one, Failed):
        return one
    return turned if isinstance(turned, Failed) else (one + turned) / 2
