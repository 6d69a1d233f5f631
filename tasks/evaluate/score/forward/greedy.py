"""Greedy answers of a decoder to many prompts, with as many at a time as there are places.

A prompt takes a place as soon as an answer leaves it. What it begins with in common with the text of another place is
copied from there, and prompts that begin alike are computed in one row, in the same pass as the next token of each
answer. Every answer is computed as if it were the only one, and ends at its own end.

Shapes: B answers, T tokens, S keys, H heads, K heads of keys and values, D head size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tasks.evaluate.score.forward.decoder import Decoder, RowAttention
from tasks.evaluate.score.forward.packed import rows_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

ROW = 512  # maximum tokens of a row of several prompts
LEAST_COPIED = 16  # tokens that are copied from another place
LOOK_BACK = 2  # tokens by which the harness looks back further than a stop string has
# Settings of a model's generation config that leave greedy answers as they are
HARMLESS = {"eos_token_id", "bos_token_id", "pad_token_id", "transformers_version", "_from_model_config", "use_cache"}
HARMLESS |= {"output_attentions", "output_hidden_states", "return_dict_in_generate", "max_length", "max_new_tokens"}
HARMLESS |= {"do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p"}  # of sampling


def is_plain(model: PreTrainedModel) -> bool:
    """Whether a model's own defaults of generation leave greedy answers the most likely ones, token by token."""
    settings: Any = model.generation_config
    return {*settings.to_diff_dict()} <= HARMLESS


def is_greedy(generation: Mapping[str, Any]) -> bool:
    """Whether a task's arguments ask for greedy answers, and for nothing else that this module doesn't know."""
    known = {"until", "max_gen_toks", "do_sample", "temperature"}
    return generation.keys() <= known and not generation.get("do_sample") and not generation.get("temperature")


class Ends:
    """Whether an answer is at its end: at an id that ends it, or behind a stop string, which is where the harness ends
    it if it is alone in its batch."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, ids: Sequence[int], stops: Sequence[str]) -> None:
        self.tokenizer, self.ids = tokenizer, {*ids}
        self.stops = [stop for stop in stops if stop]
        lengths = [len(tokenizer.encode(stop, add_special_tokens=False)) for stop in self.stops]
        self.window = max(lengths, default=0) + LOOK_BACK

    def __call__(self, ids: Sequence[int]) -> bool:
        """Whether the last token of an answer ends it."""
        if ids[-1] in self.ids:
            return True
        text = str(self.tokenizer.decode(ids[-self.window :])) if self.stops else ""
        return any(stop in text for stop in self.stops)


class Prompt(NamedTuple):
    """The ids of a prompt, the most tokens of its answer, and its ends."""

    ids: list[int]
    room: int
    ends: Ends


@dataclass
class _Answer:
    number: int  # of its prompt
    ids: list[int] = field(default_factory=list)


@torch.no_grad()
def greedy_answers(decoder: Decoder, prompts: Sequence[Prompt], places: int) -> list[list[int]]:
    """The ids of each answer with what ends it, if reached. At most `places` are computed at a time."""
    waiting = sorted(range(len(prompts)), key=lambda number: prompts[number].ids, reverse=True)
    cache = _Cache(decoder, min(places, len(prompts)), max(len(prompt.ids) + prompt.room for prompt in prompts))
    running: list[_Answer] = []
    done: dict[int, list[int]] = {}
    while waiting or running:
        begun = _Begun(prompts, waiting, cache, len(running)) if waiting and len(running) < cache.places else None
        _compute(decoder, running, begun, cache)
        _leave(running, prompts, cache, done)
    return [done[number] for number in range(len(prompts))]


class _Begun:
    """The next prompts, which leave `waiting`, as a row behind what they have in common with a text that is there. They
    take the places from `taken` on."""

    def __init__(self, prompts: Sequence[Prompt], waiting: list[int], cache: _Cache, taken: int) -> None:
        first = prompts[waiting[-1]].ids
        self.cache = cache
        self.source, self.shared = cache.beginning(first[:-1])
        alike = takewhile(
            lambda number: prompts[number].ids[: self.shared] == first[: self.shared],
            reversed(waiting[taken - cache.places :]),
        )
        few = [number for number in alike if len(prompts[number].ids) > self.shared]
        self.row = next(rows_of([prompts[number].ids[self.shared :] for number in few], ROW))
        self.numbers = [few[place] for place in self.row.paths]
        self.paths = [(place, torch.tensor(path)) for place, path in enumerate(self.row.paths.values(), taken)]
        self.ends = [path[-1] for path in self.row.paths.values()]
        for place, number in enumerate(self.numbers, taken):
            cache.texts[place] = list(prompts[number].ids)
            waiting.remove(number)

    def remember(self, layer: int, k_TKD: Tensor, v_TKD: Tensor) -> tuple[Tensor, Tensor]:
        """Put the keys and values of a layer into the places, and return those (K, S, D) that the row sees."""
        whole = []
        for part, new in ((self.cache.keys[layer], k_TKD), (self.cache.values[layer], v_TKD)):
            before_KSD = part[self.source, :, : self.shared].clone()  # its place may be taken now
            for place, path in self.paths:
                part[place, :, : self.shared] = before_KSD
                part[place, :, self.shared : self.shared + len(path)] = new[path].transpose(0, 1)
            whole.append(torch.cat((before_KSD, new.transpose(0, 1)), 1))
        return whole[0], whole[1]


def _compute(decoder: Decoder, running: list[_Answer], begun: _Begun | None, cache: _Cache) -> None:
    """The next token of each answer, and the first ones of those that begin, in one pass."""
    lengths = [len(cache.texts[place]) for place in range(len(running))]
    ids, places, asked, row = [], [], [], None
    if begun is not None:
        ids, asked = list(begun.row.ids), list(begun.ends)
        places = [begun.shared + depth for depth in begun.row.depths]
        row = RowAttention(decoder, begun.row.mask(), asked, begun.shared, begun.remember)
    asked += range(len(ids), len(ids) + len(running))
    attention = _PassAttention(row, len(ids), _StepAttention(cache, lengths) if running else None, len(running))
    states = decoder([*ids, *(answer.ids[-1] for answer in running)], [*places, *lengths], attention, asked)
    best = decoder.logits(states).argmax(1).tolist()
    started = len(best) - len(running)
    for place, (answer, id) in enumerate(zip(running, best[started:], strict=True)):
        cache.texts[place].append(answer.ids[-1])
        answer.ids.append(id)
    if begun is not None:
        running += [_Answer(number, [id]) for number, id in zip(begun.numbers, best[:started], strict=True)]


def _leave(running: list[_Answer], prompts: Sequence[Prompt], cache: _Cache, done: dict[int, list[int]]) -> None:
    """Take finished answers away. The last one moves to the place of each."""
    for place in reversed(range(len(running))):
        answer, prompt = running[place], prompts[running[place].number]
        if len(answer.ids) < prompt.room and not prompt.ends(answer.ids):
            continue
        done[answer.number] = answer.ids
        last = running.pop()
        if last is not answer:
            running[place] = last
            cache.move(len(running), place)


class _Cache:
    """Keys and values (B, K, S, D) of each layer, and the ids of the text in each place."""

    def __init__(self, decoder: Decoder, places: int, length: int) -> None:
        self.places = places
        shape = places, decoder.kv_heads, length, decoder.head_size
        # Zeros by numpy: pages that nothing is written to take no memory, and hidden keys must be numbers
        self.keys = [torch.from_numpy(np.zeros(shape, np.float32)) for _ in decoder.layers]
        self.values = [torch.from_numpy(np.zeros(shape, np.float32)) for _ in decoder.layers]
        self.texts: list[list[int]] = [[] for _ in range(places)]

    def beginning(self, ids: Sequence[int]) -> tuple[int, int]:
        """The place whose text begins most like `ids`, and the number of tokens in common, 0 if they are few."""
        found = [_common(ids, text) for text in self.texts]
        place = max(range(self.places), key=lambda place: found[place])
        return place, found[place] if found[place] >= LEAST_COPIED else 0

    def move(self, source: int, target: int) -> None:
        """Copy a place to another."""
        length = len(self.texts[source])
        for part in (*self.keys, *self.values):
            part[target, :, :length] = part[source, :, :length]
        self.texts[target] = list(self.texts[source])


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of tokens that both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class _StepAttention:
    """Attention of the next token of each answer to its text, whose length is that token's position."""

    def __init__(self, cache: _Cache, lengths: Sequence[int]) -> None:
        self.cache = cache
        self.lengths = torch.tensor(lengths)
        self.rows = torch.arange(len(lengths))
        self.longest = max(lengths) + 1
        hidden = torch.arange(self.longest) > self.lengths[:, None]
        self.bias = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)[:, None, None]

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        """As in the protocol."""
        keys, values = self._with(self.cache.keys[layer], k_TKD), self._with(self.cache.values[layer], v_TKD)
        q_BKND = q_THD.unflatten(1, (keys.shape[1], -1))
        return F.scaled_dot_product_attention(q_BKND, keys, values, attn_mask=self.bias).flatten(1)

    def _with(self, part_BKSD: Tensor, new_BKD: Tensor) -> Tensor:
        part_BKSD[self.rows, :, self.lengths] = new_BKD
        return part_BKSD[: len(self.rows), :, : self.longest]


class _PassAttention:
    """Attention of a pass: first the `tokens` of a row, if there is one, then the next tokens of `answers`, if any."""

    def __init__(self, row: RowAttention | None, tokens: int, step: _StepAttention | None, answers: int) -> None:
        self.row, self.tokens, self.step, self.answers = row, tokens, step, answers

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        """As in the protocol."""
        tokens, queries, parts = self.tokens, len(q_THD) - self.answers, []
        if self.row is not None:
            parts.append(self.row(layer, q_THD[:queries], k_TKD[:tokens], v_TKD[:tokens]))
        if self.step is not None:
            parts.append(self.step(layer, q_THD[queries:], k_TKD[tokens:], v_TKD[tokens:]))
        return torch.cat(parts)
