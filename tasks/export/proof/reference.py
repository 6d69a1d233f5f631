"""The checkpoint's answers, computed once, which every format is compared with.

Shapes: T tokens of a window, V vocabulary.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from models.conversation import TemplateFaultError, generation_ends, render
from models.pretrained import by_file_names, stored_weights
from models.runtimes.greedy import ends_of
from models.runtimes.protocol import AllLogProbabilities, Message, ModelRuntime
from models.runtimes.transformers import TransformersRuntime
from models.tokenizer import beginning
from storage.errors import ConfigError
from storage.shards.arrays import Float32
from tasks.export.config import ExportConfig
from tasks.export.proof.held_out import Windows
from tasks.export.proof.probes import OF_EACH
from tasks.tokenizer.proof import HARD_TEXTS
from tasks.training.chain import BASE

PROMPT_TOKENS = 24  # of a prompt taken from a window of held-out text
PROMPTS = 5  # taken from windows
DECODED_AT_ONCE = 64  # tokens of the vocabulary
BYTE = re.compile(r"<0x[0-9A-F]{2}>")


# Several turns, a system message, code, other scripts, white space at both ends. A template may refuse some
CONVERSATIONS: tuple[Sequence[Message], ...] = (
    ({"role": "user", "content": "What is a river?"},),
    ({"role": "system", "content": "Answer in one sentence."}, {"role": "user", "content": "Who wrote the Odyssey?"}),
    (
        {"role": "user", "content": "Name a colour."},
        {"role": "assistant", "content": "Blue."},
        {"role": "user", "content": "And another?"},
    ),
    ({"role": "user", "content": "def f(x):\n    return {'a': x}  # <|user|> & \"quotes\"\n"},),
    ({"role": "user", "content": "  Où est la gare ? 駅はどこですか 👩‍👩‍👧 \u200d\n"},),
)


class Reference:
    """The checkpoint, opened in transformers. Its distributions are on disk, in `scratch`."""

    def __init__(
        self, folder: Path, windows: Windows, config: ExportConfig, scratch: Path, device: str = "cpu"
    ) -> None:
        self.folder, self.windows, self.config = folder, windows, config
        self.runtime, self.device = TransformersRuntime(folder, device), device
        self._scratch = scratch
        scratch.mkdir(parents=True, exist_ok=True)
        self.answers = self.distributions(self.runtime, "checkpoint")
        skipped = len(beginning(self.runtime.tokenizer))
        of_windows = [self.runtime.decode(window[skipped:]) for window in windows]
        texts = [*hostile_texts(folder), *config.prompts, *of_windows]
        self.texts = [(text, self.runtime.tokenize(text)) for text in texts]
        self.vocabulary = self._vocabulary()
        self.chats = [(chat, ids) for chat in CONVERSATIONS if (ids := chat_ids(self.runtime, chat)) is not None]
        prompts = [self._fitting(text) for text in config.prompts]
        of_text = [list(window[:PROMPT_TOKENS]) for window in windows[:PROMPTS]]
        self.prompts, self.probed = [*prompts, *of_text], [*prompts[:OF_EACH], *of_text[:OF_EACH]]
        self.ends = _ends(self.runtime)
        self.continuations = [
            without_end(self.runtime.greedy(ids, config.greedy_tokens), self.ends) for ids in self.prompts
        ]

    def distributions(self, runtime: ModelRuntime, name: str) -> list[AllLogProbabilities]:
        """(T, V) log-probabilities of each window, on disk as those of a large vocabulary take gigabytes."""
        mapped = []
        for number, window in enumerate(self.windows):
            path = self._scratch / f"{name}-{number:05}.npy"
            np.save(path, runtime.all_log_probabilities(window))
            mapped.append(np.load(path, mmap_mode="r"))
        return mapped

    @contextmanager
    def holding(self, weights: Iterable[tuple[str, Float32]]) -> Iterator[int]:
        """Within the block, the checkpoint's own program holds these matrices. Yields their number."""
        import torch

        inside = by_file_names(self.runtime.model.state_dict())
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
        """The model's continuation of each of the profile's prompts."""
        decode = self.runtime.tokenizer.decode
        return [
            {"prompt": text, "text": decode(ids)}
            for text, ids in zip(self.config.prompts, self.continuations, strict=False)
        ]

    def chat_samples(self, before: Mapping[str, str]) -> list[dict[str, str]]:
        """The answers of a model that has learned to answer, to the same prompts through its chat template, and those
        of its base `before` the training."""
        provenance = self.config.provenance
        if provenance is None or not (provenance.base or provenance.link != BASE):
            return []
        answers = greedy_answers(self.runtime, self.config)
        return [
            {"prompt": text, "text": answer, **({"base": before[text]} if text in before else {})}
            for text, answer in answers.items()
        ]

    def _fitting(self, text: str) -> list[int]:
        """The ids of a prompt. Raises ConfigError for a prompt that leaves no room for its continuation."""
        ids = self.runtime.tokenize(text)
        if len(ids) + self.config.greedy_tokens > self.runtime.context:
            raise ConfigError(
                f"The prompt {text[:40]!r} of export.prompts has {len(ids):,} tokens and is continued by "
                f"{self.config.greedy_tokens:,}, but the model's context is {self.runtime.context:,}.",
                "Shorten it, or lower export.greedy_tokens.",
            )
        return ids

    def _vocabulary(self) -> list[tuple[list[int], str]]:
        """Every token of the vocabulary, some at a time, and their text. Tokens of single bytes are left out, because
        every program reads a run of bytes that isn't a character differently."""
        known = self.runtime.tokenizer.get_vocab().items()
        ids = sorted(id for token, id in known if not BYTE.fullmatch(token))
        parts = [ids[start : start + DECODED_AT_ONCE] for start in range(0, len(ids), DECODED_AT_ONCE)]
        return [(part, self.runtime.decode(part)) for part in parts]


def hostile_texts(model: Path) -> list[str]:
    """Texts full of what tokenizers differ on. They are composed (NFC) if the tokenizer composes characters first, as
    llama.cpp leaves that to its caller."""
    settings = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    composed = "NFC" in json.dumps(settings.get("normalizer"))
    return [unicodedata.normalize("NFC", text) if composed else text for text in HARD_TEXTS]


def answers_of(model: Path, config: ExportConfig, device: str) -> dict[str, str]:
    """The answers of a folder's model to the profile's prompts, by prompt."""
    with closing(TransformersRuntime(model, device)) as runtime:
        return greedy_answers(runtime, config)


def greedy_answers(runtime: TransformersRuntime, config: ExportConfig) -> dict[str, str]:
    """The greedy answer to each of the profile's prompts that fits, through the chat template."""
    ends, decode, tokens = _ends(runtime), runtime.tokenizer.decode, config.greedy_tokens
    chats = {text: chat_ids(runtime, [{"role": "user", "content": text}]) for text in config.prompts}
    return {
        text: decode(without_end(runtime.greedy(ids, tokens), ends)).strip()
        for text, ids in chats.items()
        if ids is not None and len(ids) + tokens <= runtime.context
    }


def chat_ids(runtime: TransformersRuntime, chat: Sequence[Message]) -> list[int] | None:
    """The ids of a conversation. None if it is too long, or if the template refuses it, as one with a system
    message."""
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
    """The tokens that end an answer. A runtime may know the end of a turn by name even if no config states it."""
    known = ends_of(runtime.model, runtime.tokenizer)
    try:
        return frozenset(generation_ends(runtime.tokenizer, known))
    except TemplateFaultError:
        return frozenset(known)
