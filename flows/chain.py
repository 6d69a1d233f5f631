"""Wires the chain of post-training: the inputs of each link, of the evaluation and of the release.

A stage's parameters name its inputs, so a link declares what it takes by its signature: `model`, `teacher`, `judge`,
and the pairs that it learns from under the name of their role.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from profiles.schema import Profile
from storage.artifact import Artifact
from tasks.evaluate import EvaluateConfig
from tasks.evaluate.learning_curves.snapshots import chosen_snapshots
from tasks.export import BEST
from tasks.posttrain.best_of_n import BestOfNConfig
from tasks.posttrain.feedback import FeedbackConfig
from tasks.posttrain.merge import MergeConfig
from tasks.posttrain.methods import METHODS
from tasks.posttrain.methods.distill import DistillConfig
from tasks.posttrain.rows.row_sources import Pairs
from tasks.stage.decorator import STAGES
from tasks.stage.protocol import Input
from tasks.training.chain import BASE, BESIDE, JUDGE


class Start(NamedTuple):
    """The start of post-training: a model, pairs, and text that no stage trains on."""

    model: Artifact
    pairs: Artifact
    held_out: Artifact  # tokens, or benchmarks without pretraining
    contamination: Artifact | None = None
    documents: Artifact | None = None  # as the filter measured them
    training: Artifact | None = None  # tokens
    stages: Mapping[str, Artifact] = {}  # that the documents went through, by name

    @classmethod
    def trained(cls, profile: Profile, model: Artifact, pairs: Artifact, **stages: Artifact) -> Start:
        """A model that was trained on documents, which went through `stages`."""
        tokens, measured = stages["tokenize"], profile.filter and profile.filter.contamination
        return cls(
            model,
            pairs,
            tokens.part("validation"),
            stages["filter"].part("contamination") if measured else None,
            stages["dedup"].part("documents"),
            tokens.part("train"),
            {name: artifact for name, artifact in stages.items() if getattr(profile, name) is not None},
        )


class Chain:
    """The models of a run by the link that made them, the base first, with what is made beside the chain."""

    def __init__(self, profile: Profile, start: Start) -> None:
        self.profile, self.start = profile, start
        self.models: dict[str, Artifact] = {BASE: start.model}
        self.beside: dict[str, Artifact] = {}

    def add(self, link: str, made: Artifact) -> None:
        """Append the artifact of a link."""
        (self.beside if link in BESIDE else self.models)[link] = made

    def inputs(self, link: str) -> list[Input | Pairs]:
        """The inputs of a link's stage, in the order of its parameters."""
        config = getattr(self.profile, link)
        last = list(self.models.values())[-1].part("model")
        inputs: dict[str, Input | Pairs] = {"model": last}
        if isinstance(config, FeedbackConfig | BestOfNConfig) and not config.asks_model:
            inputs["model"] = None
        if isinstance(config, MergeConfig):
            named = {name: self.models[name].part("model") for name in config.links}
            return [self.models[BASE].part("model"), named]
        if isinstance(config, DistillConfig):
            elsewhere = config.teacher_from or config.endpoint
            inputs["teacher"] = None if elsewhere else self.models[config.teacher].part("model")
        elif link in METHODS or isinstance(config, BestOfNConfig):
            inputs["judge"] = self.judge if config.judged else None
        pairs = self._pairs(link)
        return [inputs.get(name, pairs) for name in STAGES[link].input_names]

    def _pairs(self, link: str) -> Pairs:
        """The pairs of a link's kind, from download, from an earlier link, or from all of these."""
        profile = self.profile
        role = METHODS[link].reads(profile.download.roles) if link in METHODS else "instructions"
        downloaded = self.start.pairs.part(role)
        origin = profile.learns_from(link)
        if origin == "downloaded":
            return downloaded
        made = profile.role_of_made(link)
        if origin != "both":
            return self.beside[origin].part(made)
        return {
            "downloaded": downloaded,
            **{name: self.beside[name].part(made) for name in profile.makers_before(link)},
        }

    @property
    def judge(self) -> Artifact | None:
        """The reward model, if the profile trains one."""
        return self.beside[JUDGE].part("model") if JUDGE in self.beside else None

    @property
    def released(self) -> str:
        """The link whose model is released."""
        return released_link(self.profile, self.models)

    @property
    def released_model(self) -> Artifact:
        """The model that is released."""
        return self.models[self.released].part("model")

    def evaluation_config(self, config: EvaluateConfig) -> EvaluateConfig:
        """The config of an evaluation, with what other sections of the profile decide."""
        config = config.with_filter(self.profile.filter).with_release(self.released)
        return config.with_original(self.profile.base) if self.profile.base and self.profile.pretrain else config

    def texts_of_training(self, config: EvaluateConfig) -> tuple[Artifact | None, Artifact | None, Artifact | None]:
        """What an evaluation needs of the text that was trained on: which benchmarks it contains, its tokens, and its
        documents."""
        start, safety = self.start, config.safety
        return (
            start.contamination,
            start.training if safety and safety.memorisation else None,
            start.documents if safety and safety.continuations else None,
        )

    def measured(self, config: EvaluateConfig) -> dict[str, Artifact]:
        """The models that the evaluation measures: every link, and the chosen snapshots of pretraining."""
        models = {name: made.part("model") for name, made in self.models.items()}
        return models | chosen_snapshots(self.models[BASE], config.snapshots, BASE)

    def beneath(self, link: str) -> dict[str, Artifact]:
        """The pretrained base of a link, whose answers the card shows beside the link's own, and the adapters up to the
        link if a format of the release needs them. Empty for a model trained from scratch."""
        profile = self.profile
        if profile.export is None or profile.base is None or link == BASE:
            return {}
        names = list(self.models)
        adapted = names[1 : names.index(link) + 1] if profile.export.needs_base else []
        return {BASE: self.start.model.part("model"), **{name: self.models[name].part("adapter") for name in adapted}}


def released_link(profile: Profile, models: Mapping[str, Artifact]) -> str:
    """The link whose model is released: the one that the profile names, or the last. `best` is the last link whose
    training did not raise its loss on held-out pairs."""
    requested = profile.export and profile.export.link
    if requested == BEST:
        return next(name for name in reversed([*models]) if not got_worse(models[name]))
    return requested or list(models)[-1]


def got_worse(link: Artifact) -> bool:
    """Whether a training raised the loss on held-out pairs. False if none were held out, and before it is made."""
    counts = link.manifest.counts if link.manifest else {}
    before, after = counts.get("initial_validation_loss"), counts.get("validation_loss")
    return before is not None and after is not None and after > before
