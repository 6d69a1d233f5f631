"""An OpenAI-compatible endpoint as a model for lm-evaluation-harness, which generates text in a conversation.

Its protocol lacks likelihoods. A benchmark with the chat template sends its turns as they are. Without it, the whole
prompt is one turn of the user. Answers are kept, so that each is paid for once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lm_eval.api.model import LM
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text

from models.conversation import Messages
from storage.errors import ConfigError
from tasks.endpoint.client import Asked, Endpoint
from tasks.endpoint.config import EndpointConfig
from tasks.endpoint.paid import PaidAnswers
from tasks.endpoint.reply import counted
from tasks.evaluate.score.model import USUAL_TOKENS
from tasks.evaluate.score.repeats import repeats
from tasks.stage.runtime import EndpointRuntime

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

SECTION = "evaluate.models"
KNOWN = {"do_sample", "until", "max_gen_toks", "temperature"}


class HostedModel(LM):
    """The model behind an endpoint."""

    tokenizer_name = ""  # the server has the template

    def __init__(self, endpoint: EndpointConfig, runtime: EndpointRuntime, kept: Path, seed: int) -> None:
        super().__init__()
        self.endpoint, self.runtime, self.paid, self.seed = endpoint, runtime, PaidAnswers(kept), seed
        self.faults: dict[str, int] = {}  # of the answers to the last benchmark

    def chat_template(self, chat_template: bool | str = False) -> str:
        """An empty name, as the template is the server's."""
        return ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation as JSON, which is decoded again before it is sent."""
        return json.dumps(chat_history)

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """The answers in order, an empty one if the server refused the request. Raises ConfigError, SourceError, and
        EmptyOutput if no answer has text."""
        by_settings: dict[tuple[int, float], list[int]] = defaultdict(list)
        settings = [_arguments(request.args[1]) for request in requests]
        for number, one in enumerate(settings):
            by_settings[one["max_gen_toks"], float(one["temperature"] or 0.0)].append(number)
        answers: dict[int, str] = {}
        faults: list[str] = []
        for (tokens, temperature), numbers in by_settings.items():
            endpoint = Endpoint(self.endpoint, Asked(tokens, temperature, self.seed, SECTION), self.runtime, self.paid)
            conversations = [_conversation(requests[number].args[0]) for number in numbers]
            samples = repeats(requests[number].args[0] for number in numbers)
            replies = endpoint.complete(conversations, samples, [self.seed + sample for sample in samples])
            for number, answer in zip(numbers, replies, strict=True):
                text = answer.text if answer is not None else ""
                answers[number] = postprocess_generated_text(text, settings[number]["until"], think_end_token=None)
                faults.append(answer.fault if answer is not None else "refused")
        self.faults = counted(faults, SECTION)
        return [answers[number] for number in range(len(requests))]

    def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> NoReturn:
        """Unreachable, as endpoints only get benchmarks answered in text."""
        raise ConfigError("An endpoint doesn't return likelihoods.", "Leave the benchmark out.")

    loglikelihood_rolling = loglikelihood


def _arguments(generation: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {"temperature": 0.0, **normalize_gen_kwargs(dict(generation), USUAL_TOKENS)}
    if unknown := sorted(settings.keys() - KNOWN):
        raise ConfigError(
            f"A benchmark generates text with {', '.join(unknown)}, which requests to an endpoint don't take.",
            f"Set them in the endpoint's `fields`, and use {', '.join(sorted(KNOWN))} in `generation`.",
        )
    return settings


def _conversation(prompt: str) -> Messages:
    """The conversation that `apply_chat_template` wrote, or a single turn."""
    try:
        turns = json.loads(prompt)
    except ValueError:
        turns = None
    is_one = isinstance(turns, list) and turns and all(isinstance(turn, dict) and "role" in turn for turn in turns)
    return turns if is_one else [{"role": "user", "content": prompt}]
