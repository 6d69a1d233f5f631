"""An OpenAI-compatible endpoint as lm-evaluation-harness asks a model: for text, as a conversation.

Likelihoods are not in its protocol. A benchmark that is asked through the chat template sends its turns as they are;
of any other the whole prompt is one turn of the user. What was answered is kept, and paid for once.
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
    """Whoever answers at an endpoint."""

    tokenizer_name = ""  # the server has the template

    def __init__(self, endpoint: EndpointConfig, runtime: EndpointRuntime, kept: Path, seed: int) -> None:
        super().__init__()
        self.endpoint, self.runtime, self.paid, self.seed = endpoint, runtime, PaidAnswers(kept), seed
        self.faults: dict[str, int] = {}  # of the answers to the last benchmark

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Of no name: it is the server's."""
        return ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation as JSON, which is a conversation again when it is sent."""
        return json.dumps(chat_history)

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """The answers in order; an empty one where the server refused the request. Raises ConfigError, SourceError,
        and EmptyOutput where none holds text."""
        together: dict[tuple[int, float], list[int]] = defaultdict(list)
        asked = [_arguments(request.args[1]) for request in requests]
        for number, one in enumerate(asked):
            together[one["max_gen_toks"], float(one["temperature"] or 0.0)].append(number)
        answers: dict[int, str] = {}
        faults: list[str] = []
        for (tokens, temperature), numbers in together.items():
            endpoint = Endpoint(self.endpoint, Asked(tokens, temperature, self.seed, SECTION), self.runtime, self.paid)
            conversations = [_conversation(requests[number].args[0]) for number in numbers]
            samples = repeats(requests[number].args[0] for number in numbers)
            said = endpoint.complete(conversations, samples, [self.seed + sample for sample in samples])
            for number, answer in zip(numbers, said, strict=True):
                text = answer.text if answer is not None else ""
                answers[number] = postprocess_generated_text(text, asked[number]["until"], think_end_token=None)
                faults.append(answer.fault if answer is not None else "refused")
        self.faults = counted(faults, SECTION)
        return [answers[number] for number in range(len(requests))]

    def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> NoReturn:
        """Never asked: see `asks_for_text`."""
        raise ConfigError("An endpoint gives no likelihoods.", "Leave the benchmark out.")

    loglikelihood_rolling = loglikelihood


def _arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"temperature": 0.0, **normalize_gen_kwargs(dict(given), USUAL_TOKENS)}
    if unknown := sorted(found.keys() - KNOWN):
        raise ConfigError(
            f"A benchmark asks for text with {', '.join(unknown)}, which an endpoint is not asked with.",
            f"Set them in the endpoint's `fields`, and use {', '.join(sorted(KNOWN))} in `generation`.",
        )
    return found


def _conversation(prompt: str) -> Messages:
    """What `apply_chat_template` wrote, or a single turn."""
    try:
        found = json.loads(prompt)
    except ValueError:
        found = None
    is_one = isinstance(found, list) and found and all(isinstance(turn, dict) and "role" in turn for turn in found)
    return found if is_one else [{"role": "user", "content": prompt}]
