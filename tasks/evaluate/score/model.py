"""A model of transformers for lm-evaluation-harness: its own HFLM, with likelihoods computed in packed rows, and
answers generated after the common beginning of prompts.

The harness itself pads a batch to its longest sequence, and computes the text of a question once for each of its
choices, examples once for each question, and the logits of every position. The results here are the same to rounding
(1e-6 nats). LLaMA and its kin are computed on a CPU by a decoder of ours (`forward/decoder.py`), which is proved when
the model is opened, and their greedy answers as in `forward/greedy.py`. Others are proved on the first row and the
first batch. If that fails, or the model's attention isn't plain (sliding windows, soft-capped logits), the harness's
own computation is used.

Shapes: T tokens of a row, K of them with needed logits, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from models.kernels.virtual_tokens import virtual_tokens
from models.pretrained import context_of
from models.runtimes.greedy import ends_of
from storage.errors import ConfigError, OutOfMemory
from tasks.evaluate.score.encoding import ChatEncoding
from tasks.evaluate.score.forward.decoder import Decoder, RowAttention, decoder_of
from tasks.evaluate.score.forward.greedy import Ends, Prompt, greedy_answers, is_greedy, is_plain
from tasks.evaluate.score.forward.packed import Row, rows_of
from tasks.evaluate.score.forward.shared_prefix import Batch, Beginnings
from tasks.training.recovery.out_of_memory import in_halves

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

TOKENS = {"cpu": 2048, "cuda": 8192}  # maximum of a row whose sequences share a beginning
UNRELATED = {"cpu": 512, "cuda": 4096}  # maximum of any other row, as more would only be masked
MOST_LOGITS = 1 << 27  # of a row: twice 0.5 GB in float32
LOGITS = 128  # tokens whose logits a CPU computes at a time, to find them again in its caches
NEAR = 1e-3  # nats of rounding allowed in a sequence of a few hundred tokens
PROVED = 4  # sequences of the first row, and prompts of the first batch
USUAL_TOKENS = 256  # the harness's default length of an answer
Request = tuple[tuple[str, str] | None, list[int], list[int]]  # texts, ids of the context, ids of its continuation
Answer = tuple[float, bool]  # log-likelihood, and whether each token is the most likely one


class PackedModel(ChatEncoding, HFLM):
    """HFLM whose log-likelihoods come from packed rows."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, batch_size: int) -> None:
        context = context_of(model.config)
        super().__init__(pretrained=model, tokenizer=tokenizer, batch_size=batch_size, max_length=context)
        self.packs = _plain_attention(model)
        self.proved = False
        self.decoder = decoder_of(model) if self.packs else None
        self.beginnings = Beginnings(model)
        # Whether answers may follow a shared beginning. None: not proved yet. Generation would cut off virtual tokens
        self.shares: bool | None = False if virtual_tokens(model.config) else None

    def _loglikelihood_tokens(
        self, requests: list[Request], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[Answer]:
        """The answer to each request, in order. A request longer than the context loses its beginning."""
        if not self.packs or any(len(after) > self.max_length for _, _, after in requests):
            return self._padded(requests)
        inputs = [[*before, *after][-(self.max_length + 1) :][:-1] for _, before, after in requests]
        answers: dict[int, Answer] = {}
        most = min(TOKENS[self.device.type], MOST_LOGITS // int(self.model.config.vocab_size))
        for row in rows_of(inputs, most, min(most, UNRELATED[self.device.type])):
            packed = self._answers(row, [requests[number][2] for number in row.paths])
            if not self.proved and self.decoder is None:
                self.proved = True
                few = list(row.paths)[:PROVED]
                padded = self._padded([requests[number] for number in few])
                if any(abs(packed[place][0] - padded[place][0]) > NEAR for place in range(len(few))):
                    self.packs = False
                    return self._padded(requests)
            answers |= dict(zip(row.paths, packed, strict=True))
        return [answers[number] for number in range(len(requests))]

    @property
    def max_gen_toks(self) -> int:
        """Default length of an answer, in tokens."""
        return room_for(self.max_length)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The answers, after a check that they fit into the context: the harness's own, or greedy ones of a decoder."""
        check_room(requests, self.max_gen_toks, self.max_length)
        if (
            self.decoder is not None
            and is_plain(self.model)
            and all(is_greedy(request.args[1]) for request in requests)
        ):
            return self._greedy(self.decoder, requests)
        answers: list[str] = super().generate_until(requests, disable_tqdm=disable_tqdm)
        return answers

    def _greedy(self, decoder: Decoder, requests: list[Instance]) -> list[str]:
        eos, ends = self.tok_decode(self.eot_token_id, skip_special_tokens=False), ends_of(self.model, self.tokenizer)
        prompts, stops = [], []
        for request in requests:
            text, generation = request.args
            normal: Any = normalize_gen_kwargs(generation, self.max_gen_toks)
            stops.append(handle_stop_sequences(normal["until"], eos))
            room = normal["max_gen_toks"]
            (ids,), _ = self.tok_batch_encode([text], left_truncate_len=self.max_length - room)
            prompts.append(Prompt(ids.tolist() or [self.prefix_token_id], room, Ends(self.tokenizer, ends, stops[-1])))
        found = greedy_answers(decoder, prompts, self.batch_size)
        return [
            postprocess_generated_text(self.tok_decode(ids), stop, think_end_token=None)
            for ids, stop in zip(found, stops, strict=True)
        ]

    def _model_generate(
        self, context: Tensor, max_length: int, stop: list[str], *, attention_mask: Tensor, **more: Any
    ) -> Tensor:
        """The harness's own generation, with the common beginning of prompts computed once. A batch that is too large
        for the memory is answered in halves."""

        def generated(places: Sequence[int]) -> Tensor:
            rows = slice(places[0], places[-1] + 1)
            return self._generated(context[rows], max_length, stop, attention_mask[rows], **more)

        def too_large(_: int) -> OutOfMemory:
            return OutOfMemory(
                f"A prompt of {context.shape[1]:,} tokens with its answer doesn't fit into memory.",
                "Set its generation to {max_gen_toks: …} in evaluate.tasks, or evaluate.dtype to bfloat16.",
            )

        answers = in_halves(generated, range(len(context)), too_large, self.beginnings.forget)
        return pad_sequence(answers, batch_first=True, padding_value=self.tokenizer.pad_token_id)

    def _generated(
        self, context: Tensor, max_length: int, stop: list[str], attention_mask: Tensor, **more: Any
    ) -> Tensor:
        shared = self._shared(context, attention_mask)
        if shared is not None:
            context, attention_mask = shared.ids_BT, shared.mask_BT
            more["past_key_values"] = self.beginnings.cache(shared.shared, len(context))
        ids: Tensor = super()._model_generate(context, max_length, stop, attention_mask=attention_mask, **more)
        return ids

    def _shared(self, ids_BT: Tensor, mask_BT: Tensor) -> Batch | None:
        """The batch with its common beginning computed, if that is worthwhile and has been proved."""
        if not self.packs or self.shares is False:
            return None
        batch = self.beginnings.of(ids_BT, mask_BT)
        if batch is not None and self.shares is None:
            self.shares = self._next_is_the_same(batch, ids_BT, mask_BT)
        return batch if self.shares else None

    @torch.no_grad()
    def _next_is_the_same(self, batch: Batch, ids_BT: Tensor, mask_BT: Tensor) -> bool:
        """Whether the next-token distributions of the first prompts equal the harness's."""
        model: Any = self.model
        few = min(PROVED, len(ids_BT))
        ours, theirs = (
            model(
                input_ids=ids[:few],
                attention_mask=seen[:few],
                past_key_values=cache,
                logits_to_keep=1,
                position_ids=_positions(seen)[:few, -ids.shape[1] :],
            )
            .logits[:, -1]
            .float()
            .log_softmax(-1)
            for ids, seen, cache in (
                (batch.ids_BT[:, batch.shared :], batch.mask_BT, self.beginnings.cache(batch.shared, few)),
                (ids_BT, mask_BT, None),
            )
        )
        return bool((ours - theirs).abs().max() <= NEAR)

    def _padded(self, requests: list[Request]) -> list[Answer]:
        answers: list[Answer] = super()._loglikelihood_tokens(requests, disable_tqdm=True)
        return answers

    @torch.no_grad()
    def _answers(self, row: Row, follows: Sequence[Sequence[int]]) -> list[Answer]:
        """The answers to the sequences of a row, in the order of its paths."""
        device = self.device
        targets = [
            (node, id)
            for path, after in zip(row.paths.values(), follows, strict=True)
            for node, id in zip(path[len(path) - len(after) :], after, strict=True)
        ]
        nodes = sorted({node for node, _ in targets})
        place = {node: number for number, node in enumerate(nodes)}
        rows = torch.tensor([place[node] for node, _ in targets], device=device)
        ids = torch.tensor([id for _, id in targets], device=device)
        values, right = torch.empty(len(ids), dtype=torch.double), torch.empty(len(ids), dtype=torch.bool)
        start = 0
        for logits_KV in self._logits(row, nodes):
            # As the harness does, although on a CPU torch's log_softmax is about 1e-5 above the more exact logsumexp
            logs_KV = logits_KV.float().log_softmax(1)
            here = ((rows >= start) & (rows < start + len(logs_KV))).nonzero()[:, 0]
            values[here] = logs_KV[rows[here] - start, ids[here]].double().cpu()
            right[here] = (logs_KV.argmax(1)[rows[here] - start] == ids[here]).cpu()
            start += len(logs_KV)
        answers, start = [], 0
        for after in follows:
            end = start + len(after)
            answers.append((values[start:end].sum().item(), bool(right[start:end].all())))
            start = end
        return answers

    def _logits(self, row: Row, nodes: Sequence[int]) -> Iterator[Tensor]:
        """The logits of some nodes, in parts (K, V)."""
        if self.decoder is not None:
            states_KC = self.decoder(row.ids, row.depths, RowAttention(self.decoder, row.mask(), nodes), nodes)
            yield from map(self.decoder.logits, states_KC.split(LOGITS))
            return
        device, model = self.device, self.model
        output: Any = model(
            input_ids=torch.tensor([row.ids], device=device),
            position_ids=torch.tensor([row.depths], device=device),
            attention_mask=torch.from_numpy(row.mask()).to(device)[None, None],
            use_cache=False,
            logits_to_keep=torch.tensor(nodes, device=device),
        )
        yield output.logits[0]


def _positions(mask_BT: Tensor) -> Tensor:
    """The position of each token in its own prompt."""
    return (mask_BT.long().cumsum(1) - 1).clamp(min=0)


def room_for(context: int) -> int:
    """Default length of an answer, in tokens: the harness's 256, or half of a context of at most 256."""
    return USUAL_TOKENS if context > USUAL_TOKENS else context // 2


def check_room(requests: Sequence[Instance], usual: int, context: int) -> None:
    """Raises ConfigError for answers as long as the context or longer, which leave no room for a prompt."""
    for request in requests:
        normal: Any = normalize_gen_kwargs(request.args[1], usual)
        if normal["max_gen_toks"] >= context:
            raise ConfigError(
                f"{request.task_name or 'A benchmark'} generates answers of {normal['max_gen_toks']:,} tokens, and the "
                f"model's context is {context:,}.",
                "Set its generation to {max_gen_toks: …} in evaluate.tasks, below the context.",
            )


def _plain_attention(model: PreTrainedModel) -> bool:
    """Whether each layer attends to all earlier tokens by torch's own attention, which takes any mask."""
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    windows = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return config._attn_implementation == "sdpa" and kinds == {"full_attention"} and not windows
