"""One answer: its tokens as they are drawn, their text, and its end.

Shapes: T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import orjson
import torch

from models.tokenizer import token_text
from tasks.serve.engines.protocol import EngineRefusal, Finish, Sampling
from tasks.serve.engines.transformers.sampler import Sampler
from tasks.serve.engines.transformers.text import Text

if TYPE_CHECKING:
    from torch import Tensor

    from models.runtimes.transformers import TransformersRuntime

LEAST = -9999.0  # of a log-probability that JSON can hold, as vLLM has it


class Answer:
    """What follows a prompt. `tell` gets each piece, and None after the last. `is_closed` is set by whoever asked, once
    nobody waits for more. Raises EngineRefusal for a prompt that doesn't fit the model."""

    def __init__(
        self,
        runtime: TransformersRuntime,
        prompt: Sequence[int],
        sampling: Sampling,
        context: int,
        tell: Callable[[dict[str, Any] | None], None],
    ) -> None:
        if not 0 < len(prompt) < context:
            raise EngineRefusal(f"The prompt has {len(prompt):,} tokens, and the context is {context:,}.")
        if not all(0 <= id < runtime.vocab_size for id in prompt):
            raise EngineRefusal(f"The prompt has ids beyond the vocabulary of {runtime.vocab_size:,} tokens.")
        self.prompt, self.is_closed = list(prompt), False
        self._tokenizer, self._ends, self._tell = runtime.tokenizer, runtime.ends, tell
        self._left = min(sampling.max_tokens, context - len(prompt))
        self._logprobs, self._prompt_logprobs = sampling.logprobs, sampling.prompt_logprobs
        self._sampler = Sampler(sampling, prompt)
        self._text = Text(runtime.tokenizer, prompt, sampling.stop)

    @property
    def last(self) -> int:
        """The last token."""
        return self._sampler.ids[-1]

    @property
    def reports_prompt(self) -> bool:
        """Whether log-probabilities of the prompt are asked for."""
        return self._prompt_logprobs is not None

    def report(self, read: int, logits_TV: Tensor) -> None:
        """Report the prompt's tokens after the first `read`, given the logits for each and for what follows."""
        if self._is_broken(logits_TV):
            return
        following = self.prompt[read + 1 : read + 1 + len(logits_TV)]
        pairs = zip(following, logits_TV, strict=False)  # nothing is known of what follows the last
        self._tell({"prompt": [self._likely(id, logits_V) for id, logits_V in pairs]})

    def _likely(self, id: int, logits_V: Tensor) -> str:
        """A token of the prompt and the likeliest ones in its place, as vLLM writes them."""
        log_V = torch.log_softmax(logits_V.double(), -1).clamp(min=LEAST)
        values, ids = log_V.topk(min(self._prompt_logprobs or 0, len(log_V)))
        ranked = zip(ids.tolist(), values.tolist(), range(1, len(ids) + 1), strict=True)
        given = (id, float(log_V[id]), int((log_V > log_V[id]).sum()) + 1)
        entries = {
            str(one): {"logprob": log, "rank": rank, "decoded_token": token_text(self._tokenizer, one)}
            for one, log, rank in (given, *ranked)
        }
        return orjson.dumps(entries).decode()

    def _is_broken(self, logits: Tensor) -> bool:
        """Whether these are no numbers, which it then tells."""
        if broken := bool(logits.isnan().any()):
            self._tell({"failed": "The model's probabilities are no numbers."})
            self._tell(None)
        return broken

    def goes_on(self, logits_V: Tensor) -> bool:
        """Draw a token and tell of it. Returns whether another one follows."""
        if self._is_broken(logits_V):
            return False
        id = self._sampler.draw(logits_V)
        self._left -= 1
        ended = id in self._ends
        text = "" if ended else self._text.add(id)
        choices = [] if self._logprobs is None else [self._choice(id, logits_V, self._logprobs)]
        self._piece(text, [id], choices)
        if not ended and self._text.stop is None and self._left > 0:
            return True
        finish: Finish = "stop" if ended or self._text.stop is not None else "length"
        self._piece(self._text.end(), finish=finish, stop=self._text.stop)
        self._tell(None)
        return False

    def _choice(self, id: int, logits_V: Tensor, count: int) -> list[Any]:
        """A token, and the likeliest ones in its place, by the model's own probabilities."""
        log_V = torch.log_softmax(logits_V.double(), -1)
        values, ids = log_V.topk(min(count, len(log_V)))
        top = [
            [one, token_text(self._tokenizer, one), log] for one, log in zip(ids.tolist(), values.tolist(), strict=True)
        ]
        return [token_text(self._tokenizer, id), float(log_V[id]), top]

    def _piece(
        self,
        text: str,
        ids: Sequence[int] = (),
        choices: Sequence[Any] = (),
        finish: Finish | None = None,
        stop: str | None = None,
    ) -> None:
        self._tell({"text": text, "ids": ids, "choices": choices, "finish": finish, "stop": stop})
