"""OpenAI's `/v1/completions`: a plain text or token ids, continued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from tasks.serve.api.chat import include_usage
from tasks.serve.api.errors import unfit
from tasks.serve.api.fields import Fields, sampling, text_of
from tasks.serve.api.stream import Form, event
from tasks.serve.ask import Ask, Delta, Usage
from tasks.serve.engines.protocol import TokenChoice

USUAL_TOKENS = 16  # of OpenAI's API
MOST_LOGPROBS = 5
MOST_PROMPT_LOGPROBS = 100


def read(body: Mapping[str, Any], *, most_answers: int) -> Ask:
    """The request of a body. Raises Refusal, which names the field."""
    fields = Fields(body)
    model = fields.text("model", "") or ""
    prompt = _prompt(fields.raw("prompt"))
    logprobs = fields.whole("logprobs", 0, MOST_LOGPROBS)
    limit = fields.whole("max_tokens", 1, 1 << 30, USUAL_TOKENS)
    for name, usual in (("echo", False), ("best_of", 1), ("suffix", None), ("logit_bias", None)):
        if fields.raw(name) not in (None, usual, {}):
            raise unfit(f"{name} is not supported.", name, "unsupported_field")
    stream, answers = fields.flag("stream"), fields.whole("n", 1, most_answers, 1) or 1
    of_prompt = fields.whole("prompt_logprobs", 0, MOST_PROMPT_LOGPROBS)
    if of_prompt is not None and (stream or answers > 1):
        raise unfit("prompt_logprobs come in one whole answer: leave out stream and n.", "prompt_logprobs")
    ask = Ask(
        model,
        prompt,
        replace(sampling(fields, max_tokens=limit, logprobs=logprobs), prompt_logprobs=of_prompt),
        answers,
        stream,
        include_usage(fields.section("stream_options"), stream),
    )
    fields.end()
    return ask


def _prompt(value: Any) -> str | list[int]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return text_of(value, "prompt")
    if isinstance(value, list) and value and all(isinstance(id, int) and not isinstance(id, bool) for id in value):
        return value
    raise unfit("prompt is neither one text nor one list of token ids.", "prompt")


class CompletionForm(Form):
    """Answers as text completions."""

    prefix = "cmpl-"

    def whole(self, answers: Sequence[Sequence[Delta]], usage: Usage) -> dict[str, Any]:
        choices = [
            {
                "index": number,
                "text": "".join(delta.text for delta in deltas),
                "finish_reason": deltas[-1].finish,
                "logprobs": self._logprobs([one for delta in deltas for one in delta.choices]),
                **self._of_prompt(deltas),
            }
            for number, deltas in enumerate(answers)
        ]
        return {**self._head("text_completion"), "choices": choices, "usage": usage.openai()}

    def begin(self, usage: Usage) -> list[bytes]:
        return []

    def add(self, delta: Delta) -> list[bytes]:
        choice = {
            "index": delta.answer,
            "text": delta.text,
            "finish_reason": delta.finish,
            "logprobs": self._logprobs(delta.choices),
        }
        return [event({**self._head("text_completion"), "choices": [choice]})]

    def end(self, usage: Usage) -> list[bytes]:
        if not self.ask.usage:
            return [b"data: [DONE]\n\n"]
        last = {**self._head("text_completion"), "choices": [], "usage": usage.openai()}
        return [event(last), b"data: [DONE]\n\n"]

    def _of_prompt(self, deltas: Sequence[Delta]) -> dict[str, Any]:
        if self.ask.sampling.prompt_logprobs is None:
            return {}
        tokens = ["null", *(one for delta in deltas for one in delta.prompt)]  # nothing precedes the first
        return {"prompt_logprobs": orjson.Fragment(f"[{','.join(tokens)}]")}

    def _logprobs(self, choices: Sequence[TokenChoice]) -> dict[str, Any] | None:
        if self.ask.sampling.logprobs is None:
            return None
        return {
            "tokens": [one.text for one in choices],
            "token_logprobs": [one.logprob for one in choices],
            "top_logprobs": [dict(one.top) for one in choices],
            "text_offset": None,
        }
