"""Plays conversations with an environment, many at a time, and says which of their tokens are the model's.

A conversation is one row of ids: the prompt, an answer as it was drawn, what the template writes between it and the
next answer with the reply in it, the next answer, and so on. No answer is encoded again, so each token's probability is
that with which it was drawn. A template that would write something else before a reply, once there is one, is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from models.conversation import Messages, TemplateFaultError, begins_with, closed, render, turns_of
from storage.errors import ConfigError, SourceError
from tasks.posttrain.rewards.config import LARGEST
from tasks.posttrain.rewards.environments.config import EnvironmentConfig, OwnEnvironmentConfig
from tasks.posttrain.rewards.environments.open import open_environments
from tasks.posttrain.rewards.environments.protocol import Environments, Opening

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# conversations so far, by their places → the next answer of each, and its log-probabilities if the engine has its own
Complete = Callable[[Mapping[int, list[int]]], Sequence[tuple[list[int], list[float] | None]]]
ASKED, ANSWERED, REPLIED = "qxone", "qxtwo", "qxthree"


@dataclass
class Episode:
    """A conversation. `ids` follow `prompt_ids`, and `own` says which of them the model drew. `earned` is None where
    the environment broke off, for the reason `failed`."""

    prompt_ids: list[int]
    ids: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    log_probabilities: list[float] | None = None
    messages: list[Mapping[str, str]] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)  # the last one
    earned: float | None = 0.0
    failed: str = ""
    turns: int = 0
    calls: int = 0
    calls_failed: int = 0
    finished: bool = False


def measures_of(episodes: Sequence[Episode]) -> dict[str, float]:
    """Turns and calls of a conversation, the share of calls that failed, and of conversations without an end."""
    calls = sum(each.calls for each in episodes)
    return {
        "conversations/turns": sum(each.turns for each in episodes) / len(episodes),
        "conversations/calls": calls / len(episodes),
        "conversations/calls_failed": sum(each.calls_failed for each in episodes) / max(1, calls),
        "conversations/unfinished": sum(not each.finished for each in episodes) / len(episodes),
    }


def check_broken(episodes: Sequence[Episode], share: float, section: str) -> None:
    """Raises SourceError if the environment broke off more than a share of these conversations."""
    broken = [each.failed for each in episodes if each.failed]
    if len(broken) > share * len(episodes):
        raise SourceError(
            f"The environment broke off {len(broken)} of {len(episodes)} conversations, more than {share:g}, its "
            f"max_failed_share. The first: {broken[0]}.",
            f"Correct it, or raise {section}.environment.max_failed_share.",
        )


@dataclass(frozen=True)
class Player:
    """Plays by the limits of a profile. `most` is in tokens of a conversation after its prompt, replies included."""

    environments: Environments
    tokenizer: PreTrainedTokenizerFast
    ends: Sequence[int]
    role: str
    turns: int
    most: int
    max_failed_share: float = 1.0
    longest: int | None = None  # tokens of a prompt that leave room for a conversation

    def play(self, rows: Sequence[Mapping[str, Any]], complete: Complete) -> list[Episode]:
        """A conversation for each rendered row."""
        given = [
            {**json.loads(row.get("fields", "{}")), "prompt": row["prompt"], "reference": row["reference"]}
            for row in rows
        ]
        openings = self.environments.reset(given)
        for tools in {json.dumps(opening.tools): opening.tools for opening in openings if opening.tools}.values():
            check_template(self.tokenizer, self.role, tools)
        episodes = [self._begun(opening, row["prompt"]) for opening, row in zip(openings, given, strict=True)]
        going = dict(enumerate(episodes))
        for turn in range(self.turns):
            answers = complete({place: [*each.prompt_ids, *each.ids] for place, each in going.items()})
            for each, answer in zip(going.values(), answers, strict=True):
                self._add_answer(each, *answer)
            ended = {place: each for place, each in going.items() if each.ids[-1] in self.ends and not each.failed}
            steps = self.environments.step({place: each.messages[-1]["content"] for place, each in ended.items()})
            going = {}
            for place, step in steps.items():
                each = ended[place]
                if isinstance(step, str):
                    each.earned, each.failed = None, step
                    continue
                each.earned = (each.earned or 0.0) + step.reward
                if abs(each.earned) > LARGEST:
                    each.earned, each.failed = None, f"its rewards sum to {each.earned:g}"
                    continue
                each.calls += step.called
                each.calls_failed += bool(step.failed)
                each.finished = step.done
                if not step.done and turn + 1 < self.turns and self._add_reply(each, step.observation):
                    going[place] = each
            if not going:
                break
        return episodes

    def _begun(self, opening: Opening, prompt: Messages) -> Episode:
        """A conversation without answers. One that can't be written is broken off, after the row's own prompt."""
        messages = [{**one, "content": written(one["content"])} for one in opening.messages]
        tools = {"tools": [dict(tool) for tool in opening.tools]} if opening.tools else {}
        failed = opening.failed
        try:
            ids = render(self.tokenizer, messages, add_generation_prompt=True, **tools)["input_ids"]
            if self.longest is not None and len(ids) > self.longest:
                failed = f"its prompt has {len(ids):,} tokens, of which {self.longest:,} leave room for a conversation"
        except TemplateFaultError:
            failed = "the chat template refuses its messages"
        if not failed:
            return Episode(ids)
        ids = render(self.tokenizer, prompt, add_generation_prompt=True)["input_ids"]
        return Episode(ids, earned=None, failed=failed)

    def _add_answer(self, each: Episode, ids: list[int], drawn: list[float] | None) -> None:
        ids = ids[: self.most - len(each.ids)]
        if drawn is not None:
            each.log_probabilities = [*(each.log_probabilities or []), *drawn[: len(ids)]]
        each.ids += ids
        each.own += [1] * len(ids)
        each.answer = ids
        each.turns += 1
        text = str(self.tokenizer.decode(ids[:-1] if ids[-1] in self.ends else ids))
        each.messages.append({"role": "assistant", "content": text})

    def _add_reply(self, each: Episode, observation: str) -> bool:
        """Add what the environment says, unless that leaves no token for an answer."""
        observation = written(observation)
        between = between_ids(self.tokenizer, self.role, observation)
        if len(each.ids) + len(between) >= self.most:
            return False
        each.ids += between
        each.own += [0] * len(between)
        if each.log_probabilities is not None:
            each.log_probabilities += [0.0] * len(between)
        each.messages.append({"role": self.role, "content": observation})
        return True


def player_of(
    config: EnvironmentConfig,
    tokenizer: PreTrainedTokenizerFast,
    ends: Sequence[int],
    most: int,
    digests: Mapping[str, str],
    longest: int | None = None,
) -> Player:
    """The player of a profile. Raises ConfigError for a chat template that can't show the tools or the replies."""
    environments = open_environments(config, digests)
    tools = [] if isinstance(config, OwnEnvironmentConfig) else environments.reset([{"prompt": ()}])[0].tools
    check_template(tokenizer, config.role, tools)
    share = config.max_failed_share if isinstance(config, OwnEnvironmentConfig) else 1.0
    return Player(environments, tokenizer, ends, config.role, config.turns, most, share, longest)


def written(text: str) -> str:
    """A text as it can be encoded: halves of surrogate pairs, which JSON and a program's output may have, as `?`."""
    return text.encode(errors="replace").decode()


def between_ids(tokenizer: PreTrainedTokenizerFast, role: str, observation: str) -> list[int]:
    """What the template writes from the end of an answer to the beginning of the next one, with a reply between them.
    Raises ConfigError if a reply changes what is before it, or the template leaves it out."""
    before: Messages = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": ANSWERED}]
    try:
        start = closed(tokenizer, render(tokenizer, before)["input_ids"])
        end = turns_of(tokenizer).end  # what the template writes after it comes after an answer as it is drawn
        start = start[: len(start) - start[::-1].index(end)]
        whole = render(tokenizer, [*before, {"role": role, "content": observation}], add_generation_prompt=True)
    except TemplateFaultError as fault:
        raise ConfigError(
            f"The chat template refuses a message of the role {role}.", "Set environment.role to user."
        ) from fault
    ids = whole["input_ids"]
    if not begins_with(ids, start):
        raise ConfigError(
            f"The chat template writes an answer differently once a message of the role {role} follows.",
            "Set environment.role to user, or tune a base whose template keeps what it wrote.",
        )
    return ids[len(start) :]


def check_template(tokenizer: PreTrainedTokenizerFast, role: str, tools: Sequence[Mapping[str, Any]]) -> None:
    """Raises ConfigError for a template that can't show tools or replies."""
    if REPLIED not in tokenizer.decode(between_ids(tokenizer, role, REPLIED)):
        raise ConfigError(f"The chat template leaves out messages of the role {role}.", "Set environment.role to user.")
    asked: Messages = [{"role": "user", "content": ASKED}]
    if tools and render(tokenizer, asked, tools=[dict(tool) for tool in tools]) == render(tokenizer, asked):
        raise ConfigError(
            "The chat template doesn't write tools, so the model can't know of one.",
            "Set environment.shows_tools to false, or return no tools from your own `reset`, for a model that learned "
            "to call it, in SFT for instance.",
        )
