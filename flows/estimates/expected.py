"""The inputs that each stage of a plan will see: measured if they are stored, otherwise expected from earlier stages.

Text comes from the sizes of sources. Dedup and the filter are expected to keep the share that their nearest earlier run
kept, or all. Hub rows have the mean length of well-known data sets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

from flows.estimates.arithmetic import TrainingWork
from flows.estimates.planned_stage import PlannedStage
from flows.estimates.sources import Rows, rows_of
from flows.estimates.stage_inputs import MODELS, parameters_of
from flows.estimates.work import FLOAT32, Seen
from profiles.schema import Profile
from storage import refs
from storage.store import Store
from tasks.base.source import parameters_of_base
from tasks.download.config import DownloadConfig
from tasks.evaluate.config import EvaluateConfig
from tasks.posttrain.methods import METHODS
from tasks.stage.decorator import STAGES
from tasks.training.chain import BEST_OF_N, LINKS, MAKES

# Bytes of a token, by the binary logarithm of the vocabulary's size
BYTES_PER_TOKEN = ((10.0, 2.6), (12.6, 3.9), (15.6, 4.5), (17.0, 4.6))
BASE_VOCABULARY = 50_000
# About: bytes of an artifact per byte of its stage's text, of a number in a format, and of an id
USUAL_SHARE = {"download": 0.5, "dedup": 0.45, "filter": 0.5}
BYTES_A_NUMBER = {"safetensors": 4.0, "int8": 1.2, "int4": 0.7, "gguf-q8_0": 1.1, "gguf-q4_0": 0.6}
BYTES_AN_ID = 70
READ_AS = {"draft": "distill", "best_of_n": "sft"}  # stages that read the instructions, as these methods do
PAIR_ROLES = ("instructions", "preferences", "labelled")


class Expected:
    """Follows the stages of a plan, in order."""

    def __init__(self, profile: Profile, training: TrainingWork | None) -> None:
        self._profile, self._training = profile, training
        self._text: dict[str, float | None] = {}  # bytes of each stage's output text
        self._pairs: dict[str, Rows] = {}  # by role
        self._model = float(training.parameters) if training else None
        self._held_out = 0.0

    def seen_by(self, line: PlannedStage) -> Seen:
        """The inputs of a stage. Call it for each stage of the plan in turn."""
        if line.name == "download":
            return self._download(line)
        if line.name == "base":
            return self._base(line)
        text = self._text_in(line)
        kept = self._kept(line, text)
        self._text[line.name] = kept
        if line.name == "tokenize":
            self._held_out = self._validation(line, text)
        return Seen(
            text=text,
            kept=kept,
            pairs=self._pairs_in(line),
            pair_tokens=self._pair_tokens(line),
            parameters=self._model_in(line),
            flops=self._flops(line),
            models=self._models(line),
            questions=self._questions(line),
            held_out=self._held_out,
        )

    def size_of(self, line: PlannedStage, seen: Seen) -> float | None:
        """Bytes of a stage's artifact: of a data stage the last time's share of its text, or the usual one, of a model
        its numbers."""
        made, config = line.manifest, line.config.model_dump()
        if line.name in ("pretrain", "base") or (line.name in LINKS and line.name not in MAKES):
            return None if self._model is None else FLOAT32 * self._model
        if line.name == "export":
            each = sum(BYTES_A_NUMBER.get(name, 2.0) for name in config["formats"])
            return None if self._model is None else each * self._model
        if line.name == "tokenizer":
            return BYTES_AN_ID * self._vocabulary
        if line.name == "tokenize":
            vocabulary = self._vocabulary
            return seen.text and seen.text / bytes_per_token(vocabulary) * (2 if vocabulary <= 1 << 16 else 4)
        if line.name not in USUAL_SHARE:
            return float(made.size) if made else None
        read = float(made.facts.get("bytes_in") or made.facts.get("text_bytes") or 0) if made else 0.0
        share = made.size / read if made and read else USUAL_SHARE[line.name]
        return None if seen.text is None else seen.text * share

    def _download(self, line: PlannedStage) -> Seen:
        config, made = line.config, line.manifest if line.hit else None
        assert isinstance(config, DownloadConfig)
        rows = rows_of(config)
        if made is not None:
            text = float(made.facts.get("text_bytes", 0)) or None
            for role in PAIR_ROLES:
                number = float(made.counts.get(role, 0))
                self._pairs[role] = Rows(number, number * rows.get(role, Rows()).mean)
            self._text[line.name] = text
            return Seen(text=text)
        documents = rows.pop("documents", Rows())
        self._pairs, self._text[line.name] = rows, documents.text
        known = [each for each in rows.values() if each.text is not None]
        every = sum(known, documents)
        return Seen(text=every.text, network=every.fetched, files=every.files, pages=every.pages)

    def _base(self, line: PlannedStage) -> Seen:
        made = line.manifest if line.hit else None
        config = self._profile.base
        assert config is not None
        if config.artifact is not None:
            store = Store(self._profile.runtime.store)
            made = store.manifest(refs.resolve(store, config.artifact))
        self._model = parameters_of(made) if made else parameters_of_base(config)
        return Seen(parameters=self._model)

    def _text_in(self, line: PlannedStage) -> float | None:
        documents = STAGES[line.name].named(line.inputs).get("documents") if line.inputs else None
        if documents is None:
            return None
        text = documents.manifest.facts.get("text_bytes") if documents.manifest else None
        text = text or self._text.get(documents.location.partition("/")[0])
        if line.name != "tokenizer" or text is None:
            return text
        limit = self._profile.tokenizer.sample_bytes_per_source * len(self._profile.document_sources)
        return min(text, float(limit))

    def _kept(self, line: PlannedStage, text: float | None) -> float | None:
        """Bytes of a stage's output text."""
        made = line.manifest
        if made is not None and line.hit:
            return float(made.facts.get("text_bytes", 0)) or None
        read = float(made.facts.get("bytes_in", 0)) if made else 0.0
        share = float(made.facts.get("text_bytes", 0)) / read if made and read else 1.0
        return None if text is None else text * (share or 1.0)

    def _pairs_in(self, line: PlannedStage) -> float | None:
        if line.name == "pairs":
            return sum(self._pairs.values(), Rows()).number
        rows = self._rows_in(line)
        counted = line.manifest.counts.get("documents") if line.manifest else None
        kept = counted["kept"] / counted["in"] if counted and counted.get("in") else 1.0
        return None if rows is None or rows.number is None else rows.number * kept

    def _pair_tokens(self, line: PlannedStage) -> float | None:
        rows = self._rows_in(line)
        if rows is None or not rows.mean:
            return None
        vocabulary = self._vocabulary
        longest = self._training.context if self._training else math.inf
        sequences = 2 if line.name in METHODS and METHODS[line.name].pairs == "preferences" else 1
        return min(longest * sequences, rows.mean / bytes_per_token(vocabulary))

    def _rows_in(self, line: PlannedStage) -> Rows | None:
        method = METHODS.get(READ_AS.get(line.name, line.name))
        if method is None:
            return None
        pairs = self._pairs or rows_of(self._profile.download)  # for an estimate of only this stage
        return pairs.get(method.reads(self._profile.download.roles))

    def _model_in(self, line: PlannedStage) -> float | None:
        if teacher := getattr(line.config, "teacher", None) if line.name == BEST_OF_N else None:
            return parameters_of_base(teacher)
        inputs = STAGES[line.name].named(line.inputs) if line.inputs else {}
        model = inputs.get("base" if line.name == "merge" else "model")
        return parameters_of(model.manifest) if model is not None and model.manifest else self._model

    def _flops(self, line: PlannedStage) -> float | None:
        return float(self._training.flops) if line.name == "pretrain" and self._training else None

    def _models(self, line: PlannedStage) -> tuple[float, ...] | None:
        if line.name != "evaluate":
            return None
        models = [one for name, one in STAGES[line.name].named(line.inputs).items() if name.startswith(MODELS)]
        sizes = [parameters_of(one.manifest) if one.manifest else self._model for one in models]
        known = tuple(size for size in sizes if size)
        return known if len(known) == len(sizes) else None

    def _questions(self, line: PlannedStage) -> float | None:
        config, download = line.config, self._profile.download
        if not isinstance(config, EvaluateConfig):
            return None
        asked = config.asked(download.benchmark_names)
        return sum(float(min(download.benchmark_items, task.limit or config.max_items or math.inf)) for task in asked)

    def _validation(self, line: PlannedStage, text: float | None) -> float:
        """Held-out tokens."""
        if line.hit and line.manifest:
            return float(line.manifest.counts.get("validation", {}).get("tokens", 0))
        share = float(getattr(line.config, "validation_share", 0) or 0)
        return (text or 0.0) * share / bytes_per_token(self._vocabulary)

    @property
    def _vocabulary(self) -> int:
        """Ids of the tokenizer, of a base about as many as usual."""
        profile = self._profile
        return (
            profile.tokenizer.vocab_size if profile.base is None else BASE_VOCABULARY + (profile.tokenizer.extend or 0)
        )


def bytes_per_token(vocabulary: int) -> float:
    """Bytes of English text per token, about."""
    size = math.log2(max(2, vocabulary))
    for (below, low), (above, high) in pairwise(BYTES_PER_TOKEN):
        if size <= above:
            return max(1.0, low + (high - low) * (size - below) / (above - below))
    return BYTES_PER_TOKEN[-1][1]


def sizes(profile: Profile, lines: Iterable[PlannedStage], training: TrainingWork | None) -> dict[str, int]:
    """Bytes of each artifact of a plan: measured, or expected if that is possible."""
    expected, by_stage = Expected(profile, training), dict[str, int]()
    for line in lines:
        seen = expected.seen_by(line)
        size = line.manifest.size if line.hit and line.manifest else expected.size_of(line, seen)
        if size is not None:
            by_stage[line.name] = round(size)
    return by_stage
