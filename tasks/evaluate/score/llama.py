"""A GGUF file as a model for lm-evaluation-harness: HFLM's handling of text around llama.cpp.

Text is encoded and decoded by the tokenizer of the link that the file was made from, so that any difference between the
two is in the weights. Requests that begin alike follow each other, as llama.cpp keeps its computation of the last
prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lm_eval.api.model import TemplateLM
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text

from models.runtimes.llama_cpp import LlamaCppRuntime
from storage.errors import ConfigError
from tasks.evaluate.score.encoding import ChatEncoding
from tasks.evaluate.score.model import Answer, check_room, room_for
from tasks.evaluate.score.repeats import repeats

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from transformers import PreTrainedTokenizerFast

SAMPLING = ("temperature", "top_p", "top_k", "min_p")  # a task's arguments that llama.cpp has under the same names
PLAIN = {"do_sample", "until", "max_gen_toks", *SAMPLING}


class LlamaModel(ChatEncoding, TemplateLM):
    """llama.cpp behind the harness's encoding, chat template and windows."""

    tok_decode, loglikelihood_rolling = HFLM.tok_decode, HFLM.loglikelihood_rolling
    prefix_token_id, eot_token_id, tokenizer_name = HFLM.prefix_token_id, HFLM.eot_token_id, HFLM.tokenizer_name

    def __init__(self, runtime: LlamaCppRuntime, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        super().__init__()
        self.runtime, self.tokenizer, self.seed = runtime, tokenizer, seed
        self.max_length = runtime.context
        self.max_gen_toks = room_for(runtime.context)
        self.batch_size = 1
        self.custom_prefix_token_id = self.add_bos_token = None  # HFLM's defaults
        self.chat_template_args: dict[str, Any] = {}

    def _loglikelihood_tokens(self, requests: Sequence[Any], **_: Any) -> list[Answer]:
        answers: dict[int, Answer] = {}
        for number in sorted(range(len(requests)), key=lambda number: [*requests[number][1], *requests[number][2]]):
            _, before, after = requests[number]
            whole = [*before, *after][-(self.max_length + 1) :]
            start = len(whole) - len(after)
            targets = self.runtime.targets(whole, start)
            answers[number] = sum(one.log_probability for one in targets), all(one.is_best for one in targets)
        return [answers[number] for number in range(len(requests))]

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """The answers in order. Raises ConfigError for an argument unknown to llama.cpp."""
        check_room(requests, self.max_gen_toks, self.max_length)
        numbers = repeats(request.args[0] for request in requests)
        return [
            self._continuation(request.args[0], request.args[1], self.seed + number)
            for request, number in zip(requests, numbers, strict=True)
        ]

    def _continuation(self, text: str, generation: Mapping[str, Any], seed: int) -> str:
        normal: Any = normalize_gen_kwargs(dict(generation), self.max_gen_toks)
        settings: dict[str, Any] = dict(normal)
        if unknown := sorted(settings.keys() - PLAIN):
            raise ConfigError(
                f"A benchmark generates text with {', '.join(unknown)}, which GGUF files don't take here.",
                f"Use {', '.join(sorted(PLAIN))} in its `generation`, or leave the model out.",
            )
        end = self.tok_decode(self.eot_token_id, skip_special_tokens=False)
        stop = handle_stop_sequences(settings["until"], eos=end)
        room = settings["max_gen_toks"]
        sampling = {"seed": seed, **{name: settings[name] for name in SAMPLING if name in settings}}
        prompt = self.tok_encode(text, left_truncate_len=self.max_length - room)
        raw = self.runtime.text_after(prompt, room, stop=stop, **sampling)
        answer: str = postprocess_generated_text(raw, stop, think_end_token=None)
        return answer
