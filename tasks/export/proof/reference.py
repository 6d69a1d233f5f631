"""The checkpoint's answers, computed once, that every format is compared with.

Shapes: T tokens of a window, V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from models.conversation import TemplateFaultError, generation_ends, render
from models.pretrained import stored_weights
from models.runtimes.greedy import ends_of
from models.runtimes.protocol import AllLogProbabilities, Message, ModelRuntime
from models.runtimes.transformers import TransformersRuntime
from models.tokenizer import beginning
from storage.errors import ConfigError
from storage.shards.arrays import Float32
from tasks.export.config import ExportConfig
from tasks.export.proof.held_out import Windows
from tasks.export.proof.texts import CONVERSATIONS, hostile_texts
from tasks.training.chain import BASE

PROMPT_TOKENS = 24  # of held-out text, to be continued
PROMPTS = 5  # as many windows begin with one
SAID_AT_ONCE = 64  # tokens of the vocabulary
BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class Reference:
    """The checkpoint, opened in transformers. Its distributions wait on disk, in `scratch`."""

    def __init__(
        self, folder: Path, windows: Windows, config: ExportConfig, scratch: Path, device: str = "cpu"
    ) -> None:
        self.folder, self.windows, self.config = folder, windows, config
        self.runtime, self.device = TransformersRuntime(folder, device), device
        self._scratch = scratch
        scratch.mkdir(parents=True, exist_ok=True)
        self.answers = self.answered(self.runtime, "checkpoint")
        begun = len(beginning(self.runtime.tokenizer))
        asked = [*hostile_texts(folder), *config.prompts, *(self.runtime.decode(window[begun:]) for window in windows)]
        self.texts = [(text, self.runtime.tokenize(text)) for text in asked]
        self.vocabulary = self._vocabulary()
        self.chats = [(chat, ids) for chat in CONVERSATIONS if (ids := rendered(self.runtime, chat)) is not None]
        said = [self._fitting(text) for text in config.prompts]
        self.prompts = [*said, *(list(window[:PROMPT_TOKENS]) for window in windows[:PROMPTS])]
        self.ends = _ends(self.runtime)
        self.continued = [
            without_end(self.runtime.greedy(ids, config.greedy_tokens), self.ends) for ids in self.prompts
        ]

    def answered(self, runtime: ModelRuntime, name: str) -> list[AllLogProbabilities]:
        """(T, V) of each window, on disk: those of a large vocabulary take gigabytes."""
        found = []
        for number, window in enumerate(self.windows):
            path = self._scratch / f"{name}-{number:05}.npy"
            np.save(path, runtime.all_log_probabilities(window))
            found.append(np.load(path, mmap_mode="r"))
        return found

    @contextmanager
    def holding(self, weights: Iterable[tuple[str, Float32]]) -> Iterator[int]:
        """The checkpoint's own program with other matrices in it, for a while; how many there are."""
        import torch

        inside = self.runtime.model.state_dict()
        held = 0
        try:
            for name, values in weights:
                if name in inside:
                    inside[name].copy_(torch.from_numpy(np.ascontiguousarray(values)))
                    held += 1
            yield held
        finally:
            for name, values in stored_weights(self.folder) if held else ():
                if name in inside:
                    inside[name].copy_(torch.from_numpy(values))

    def samples(self) -> list[dict[str, str]]:
        """What the model says after each of the profile's prompts."""
        decode = self.runtime.tokenizer.decode
        return [
            {"prompt": text, "text": decode(ids)}
            for text, ids in zip(self.config.prompts, self.continued, strict=False)
        ]

    def chat_samples(self, before: Mapping[str, str]) -> list[dict[str, str]]:
        """What a model that has learned to answer says when it is asked the same through its chat template, and what
        its base said `before` the training."""
        told = self.config.provenance
        if told is None or not (told.base or told.link != BASE):
            return []
        said = answered(self.runtime, self.config)
        return [
            {"prompt": text, "text": answer, **({"base": before[text]} if text in before else {})}
            for text, answer in said.items()
        ]

    def _fitting(self, text: str) -> list[int]:
        """The ids of a prompt. Raises ConfigError for one that leaves no room for its continuation."""
        ids = self.runtime.tokenize(text)
        if len(ids) + self.config.greedy_tokens > self.runtime.context:
            raise ConfigError(
                f"The prompt {text[:40]!r} of export.prompts has {len(ids):,} tokens and is continued by "
                f"{self.config.greedy_tokens:,}, but the model sees {self.runtime.context:,} at a time.",
                "Shorten it, or lower export.greedy_tokens.",
            )
        return ids

    def _vocabulary(self) -> list[tuple[list[int], str]]:
        """Every token of the vocabulary, some at a time, and what they say; without bytes that stand for themselves, of
        which a run that is no character is read otherwise by every program."""
        known = self.runtime.tokenizer.get_vocab().items()
        ids = sorted(id for token, id in known if not BYTE.fullmatch(token))
        parts = [ids[start : start + SAID_AT_ONCE] for start in range(0, len(ids), SAID_AT_ONCE)]
        return [(part, self.runtime.decode(part)) for part in parts]


def said_by(model: Path, config: ExportConfig, device: str) -> dict[str, str]:
    """What the model of a folder answers to each of the profile's prompts."""
    with closing(TransformersRuntime(model, device)) as runtime:
        return answered(runtime, config)


def answered(runtime: TransformersRuntime, config: ExportConfig) -> dict[str, str]:
    """The greedy answer to each of the profile's prompts that fits, through the chat template."""
    ends, decode, tokens = _ends(runtime), runtime.tokenizer.decode, config.greedy_tokens
    asked = {text: rendered(runtime, [{"role": "user", "content": text}]) for text in config.prompts}
    return {
        text: decode(without_end(runtime.greedy(ids, tokens), ends)).strip()
        for text, ids in asked.items()
        if ids is not None and len(ids) + tokens <= runtime.context
    }


def rendered(runtime: TransformersRuntime, chat: Sequence[Message]) -> list[int] | None:
    """None for a conversation that the template refuses, as one with a system's words, or that is too long."""
    try:
        ids = render(runtime.tokenizer, chat, add_generation_prompt=True)["input_ids"]
    except TemplateFaultError:
        return None
    return ids if len(ids) < runtime.context else None


def without_end(ids: Sequence[int], ends: frozenset[int]) -> list[int]:
    """A continuation up to the token that ends it."""
    stop = next((place for place, id in enumerate(ids) if id in ends), len(ids))
    return list(ids[:stop])


def _ends(runtime: TransformersRuntime) -> frozenset[int]:
    """What ends an answer; a runtime may know the end of a turn by its name, though no config says so."""
    known = ends_of(runtime.model, runtime.tokenizer)
    try:
        return frozenset(generation_ends(runtime.tokenizer, known))
    except TemplateFaultError:
        return frozenset(known)
