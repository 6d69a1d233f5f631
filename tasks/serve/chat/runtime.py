"""Answers of formats without a server: transformers and others, a whole answer at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from models.runtimes.protocol import Message, ModelRuntime, RuntimeFault
from models.runtimes.token_runtime import TokenizedRuntime
from tasks.serve.chat.answerer import ContextFull, Ended, Manner
from tasks.serve.chat.engine import refused


class RuntimeAnswerer:
    """A model in this process."""

    streams = False

    def __init__(self, model: ModelRuntime, about: str) -> None:
        self.model, self.about = model, about

    def answer(self, messages: Sequence[Message], manner: Manner, say: Callable[[str], None]) -> Ended:
        """Answer as a whole."""
        model, prompt = self.model, None
        try:
            if isinstance(model, TokenizedRuntime):
                prompt = len(model.chat_ids(messages))
                if prompt >= model.context:
                    raise ContextFull.of(prompt, model.context)
            text = model.chat(messages, manner.tokens, manner.temperature)
            tokens = len(model.tokenize(text))
        except RuntimeFault as error:
            raise refused(str(error), manner) from error
        say(text)
        return Ended("length" if tokens >= manner.tokens else "stop", tokens, prompt)
