"""The profile: every choice of a run, in two halves.

Everything outside `runtime` changes the result and enters the key of the stage that reads it, and of no other.
Everything inside `runtime` never does. Each stage's half is its own config class, imported from the stage.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from models.presets import ShapeError, derive
from storage.errors import ConfigError
from tasks.base import BaseConfig
from tasks.dedup import DedupConfig
from tasks.download import DownloadConfig
from tasks.draft import DraftConfig
from tasks.evaluate import EvaluateConfig
from tasks.evaluate.learning_curves.snapshots import check_steps, snapshot_name
from tasks.evaluate.side_by_side.config import names_of
from tasks.export import BEST, ExportConfig
from tasks.filter import FilterConfig
from tasks.posttrain.adapters.config import LAYERS
from tasks.posttrain.adapters.standalone import why_not_apart
from tasks.posttrain.config import LearnsFrom, PosttrainConfig, PreferenceConfig
from tasks.posttrain.feedback import FeedbackConfig
from tasks.posttrain.methods import METHODS
from tasks.posttrain.methods.cpo import CpoConfig
from tasks.posttrain.methods.distill import DistillConfig
from tasks.posttrain.methods.dpo import DpoConfig
from tasks.posttrain.methods.grpo import GrpoConfig
from tasks.posttrain.methods.kto import KtoConfig
from tasks.posttrain.methods.orpo import OrpoConfig
from tasks.posttrain.methods.reward import RewardConfig
from tasks.posttrain.methods.sft import SftConfig
from tasks.posttrain.ppo.config import PpoConfig
from tasks.posttrain.prune import PruneConfig
from tasks.pretrain import PretrainConfig
from tasks.significance.gate_config import unknown_models, unknown_tasks
from tasks.stage.runtime import Runtime
from tasks.tokenize import TokenizeConfig
from tasks.tokenizer import TokenizerConfig
from tasks.training.chain import BASE, BESIDE, FEEDBACK, JUDGE, LINKS, LinkName

FROM_SCRATCH = ("download", "dedup", "filter", "tokenizer", "tokenize", "pretrain")
FROM_BASE = ("download", "base")
AT_THE_END = ("evaluate", "draft", "export")
STAGE_NAMES = (
    *FROM_SCRATCH,
    "sft",
    "dpo",
    "evaluate",
    "export",
)  # of a profile that leaves all sections at their defaults
TRAINED = ("pretrain", *LINKS)
ALL = tuple(dict.fromkeys((*FROM_SCRATCH, *FROM_BASE, *LINKS, *AT_THE_END)))
NAME = r"^[a-z0-9][a-z0-9_-]{0,99}$"  # it is part of names of files


class Profile(BaseModel):
    """One file under `profiles/`, or a user's own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(
        description="lower-case letters, digits, - and _; names the refs: NAME/pretrain, NAME/export, …; without it, "
        "a profile that extends another has the name of its file",
        pattern=NAME,
    )
    description: str = Field("", description="one line for `gristmill profile list`")
    download: DownloadConfig = Field(description="sources of documents, instructions, preferences and benchmarks")
    dedup: DedupConfig | None = Field(
        default_factory=DedupConfig, description="exact and near-duplicate removal; null: none"
    )
    filter: FilterConfig | None = Field(
        default_factory=FilterConfig, description="signals and the thresholds over them; null: everything is kept"
    )
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig, description="byte-level BPE")
    tokenize: TokenizeConfig = Field(default_factory=TokenizeConfig, description="token shards and their split")
    pretrain: PretrainConfig | None = Field(
        None, description="the model and how it is trained; null where there is a `base`"
    )
    base: BaseConfig | None = Field(
        None,
        description="a model that others trained, in place of `pretrain`; of the stages before it only download runs "
        "then, and `filter.pii` on its pairs",
    )
    prune: PruneConfig | None = Field(
        None, description="leave out what the model uses least; null: none. What follows in the chain heals it"
    )
    distill: DistillConfig | None = Field(None, description="learning the distributions of a teacher; null: none")
    sft: SftConfig | None = Field(default_factory=SftConfig, description="supervised fine-tuning; null: none")
    feedback: FeedbackConfig | None = Field(
        None, description="preferences that a model gives on its own answers, beside the chain; null: none"
    )
    orpo: OrpoConfig | None = Field(None, description="odds ratio preference optimization; null: none")
    cpo: CpoConfig | None = Field(None, description="contrastive preference optimization, or SimPO; null: none")
    kto: KtoConfig | None = Field(None, description="Kahneman-Tversky optimization; null: none")
    dpo: DpoConfig | None = Field(default_factory=DpoConfig, description="direct preference optimization; null: none")
    reward: RewardConfig | None = Field(
        None, description="a reward model, trained beside the chain from the link before it; null: none"
    )
    ppo: PpoConfig | None = Field(
        None, description="proximal policy optimization, from rewards of the model of `reward`; null: none"
    )
    grpo: GrpoConfig | None = Field(
        None, description="group relative policy optimization, from rewards of sampled answers; null: none"
    )
    chain: list[LinkName] | None = Field(
        None, description=f"order of post-training (default: {', '.join(LINKS)}); what it does not name must be null"
    )
    evaluate: EvaluateConfig | None = Field(
        default_factory=EvaluateConfig, description="benchmarks and bits per byte; null: none"
    )
    draft: DraftConfig | None = Field(
        None, description="a small model that guesses what the released one will say, released with it; null: none"
    )
    export: ExportConfig | None = Field(
        default_factory=ExportConfig, description="formats of the release and tolerances; null: no release"
    )
    runtime: Runtime = Field(default_factory=Runtime, description="how to run; never part of a key")

    @property
    def stage_names(self) -> tuple[str, ...]:
        """The stages of this profile, in order: a section that is null is none."""
        names = (*(FROM_BASE if self.base else FROM_SCRATCH), *self.links, *AT_THE_END)
        return tuple(name for name in names if getattr(self, name) is not None)

    def names_to(self, until: str | None) -> tuple[str, ...]:
        """The stages that a run reaches which ends with one of them."""
        names = self.stage_names
        return names[: names.index(until) + 1] if until in names else names

    @property
    def links(self) -> tuple[LinkName, ...]:
        """The stages of post-training, in order."""
        return tuple(name for name in self.chain or LINKS if getattr(self, name) is not None)

    def pool_of(self, name: str) -> str | None:
        """The work pool that makes a stage; None where the run itself does."""
        pools = self.runtime.pools
        if name in pools.stages:
            return pools.stages[name]
        if name in AT_THE_END:
            return pools.release
        return pools.training if name in TRAINED else pools.data

    def learns_from(self, name: str) -> LearnsFrom:
        """Where the pairs of a link come from."""
        config = getattr(self, name)
        if not isinstance(config, PreferenceConfig):
            return "downloaded"
        return config.learns_from or ("feedback" if self._after_feedback(name) else "downloaded")

    def _after_feedback(self, name: str) -> bool:
        return FEEDBACK in self.links[: self.links.index(name)]

    @model_validator(mode="after")
    def _evaluation_has_its_models(self) -> Self:
        if self.evaluate:
            trained = self.pretrain
            last = self._last_step(trained) if trained and self.evaluate.snapshots else None
            check_steps(self.evaluate.snapshots, trained.snapshot_every if trained else None, last)
            along = [snapshot_name(BASE, step) for step in self.evaluate.snapshots]
            links = [BASE, *(name for name in self.links if name not in BESIDE)]
            for one in self.evaluate.models:
                if one.name in (*LINKS, BASE):
                    raise ValueError(f"evaluate.models has the name of a link, {one.name}: give it another")
                if one.link is not None and one.link not in links:
                    raise ValueError(f"evaluate.models.{one.name} is of {one.link}; the links are {', '.join(links)}")
            models = [*links, *along, *self.evaluate.named]
            unknown = unknown_models(self.evaluate.gates, models)
            if unknown:
                raise ValueError(f"evaluate.{unknown[0]}, which this run does not measure; it has {', '.join(models)}")
            if self.evaluate.side_by_side:
                try:
                    talking = [*links, *(one.name for one in self.evaluate.models if one.in_transformers)]
                    names_of(self.evaluate.side_by_side, talking, judge=JUDGE in self.links)
                except ConfigError as error:
                    raise ValueError(f"{error.message} {error.remedy}".rstrip(".")) from error
        return self

    def _last_step(self, config: PretrainConfig) -> int | None:
        try:
            return config.total_steps(derive(config.model, self.tokenizer.vocab_size))
        except ShapeError:
            return None  # which is told where the shape is asked for

    @model_validator(mode="after")
    def _memorised_text_is_there(self) -> Self:
        if self.base and self.evaluate and self.evaluate.safety and self.evaluate.safety.memorisation:
            raise ValueError(
                "evaluate.safety.memorisation needs the tokens that the model was trained on, and of a base there are "
                "none: set it to null"
            )
        return self

    @model_validator(mode="after")
    def _benchmarks_exist(self) -> Self:
        """A benchmark that nobody prepares would end the run once the models are trained, or fail a gate."""
        if self.evaluate:
            known = self.download.benchmark_names
            asked = self.evaluate.asked(known)
            for name in (task.task for task in asked if task.task not in known):
                raise ValueError(
                    f"evaluate.tasks names {name}, but the benchmarks of download are {_nearest(name, known)}"
                )
            labels = [task.label for task in asked]
            for task in unknown_tasks(self.evaluate.gates, labels, self.evaluate.safety is not None):
                raise ValueError(f"evaluate.gates names {task}, but what is measured is {_nearest(task, labels)}")
        return self

    @model_validator(mode="after")
    def _runtime_names_stages(self) -> Self:
        for name in self.runtime.pools.stages:
            if name not in ALL:
                raise ValueError(f"runtime.pools.stages names {name}, but the stages are {_nearest(name, ALL)}")
        for name in self.runtime.approve:
            if name not in ALL:
                raise ValueError(f"runtime.approve names {name}, but the stages are {_nearest(name, ALL)}")
        return self

    @model_validator(mode="after")
    def _chain_is_whole(self) -> Self:
        if self.chain is None:
            return self
        if len(set(self.chain)) < len(self.chain):
            raise ValueError("chain names a stage twice; a profile has one section for each")
        missing = [name for name in self.chain if getattr(self, name) is None]
        if missing:
            raise ValueError(f"chain names {', '.join(missing)}, which is null")
        left = [name for name in LINKS if getattr(self, name) is not None and name not in self.chain]
        if left:
            raise ValueError(f"chain does not name {', '.join(left)}: add it, or set `{left[0]}: null`")
        return self

    @model_validator(mode="after")
    def _there_is_more_than_is_kept(self) -> Self:
        """A model of others says its sizes only in its stage."""
        of_draft = self.draft.prune if self.draft and not self.draft.base else None
        first = self.prune or of_draft
        if first is not None and self.pretrain is not None:
            try:
                shape = derive(self.pretrain.model, self.tokenizer.vocab_size)
            except ShapeError:
                return self  # which is told where the shape is asked for
            sizes = {"layers": shape.depth, "feed_forward": shape.feed_forward, "kv_heads": shape.kv_heads}
            if more := first.beyond({**sizes, "width": shape.width}):
                raise ValueError(more if self.prune else f"draft.{more}")
        return self

    @model_validator(mode="after")
    def _teacher_comes_before(self) -> Self:
        if self.distill is not None:
            before = (BASE, *(name for name in self.links[: self.links.index("distill")] if name not in BESIDE))
            if self.distill.teacher not in before:
                raise ValueError(
                    f"distill.teacher is {self.distill.teacher}, but the models before it are {', '.join(before)}"
                )
        return self

    @model_validator(mode="after")
    def _answers_have_room(self) -> Self:
        """A model of others says its context only in its stage."""
        context = self.pretrain.model.context if self.pretrain is not None else None
        for name in self.links:
            config = getattr(self, name)
            if not isinstance(config, PosttrainConfig):
                continue
            length = config.max_length or context
            if context and length and length > context:
                raise ValueError(f"{name}.max_length is {length:,}, but pretrain.model.context is {context:,}")
            if length and config.generated_tokens >= length:
                raise ValueError(
                    f"{name}.max_new_tokens is {config.generated_tokens:,}, which of {length:,} tokens leaves none for "
                    "a prompt: lower it, or raise pretrain.model.context"
                )
        return self

    @model_validator(mode="after")
    def _adapters_have_layers(self) -> Self:
        """Those of a model of others are known only in its stage."""
        if self.pretrain is not None:
            family = self.pretrain.model.family
            for name in self.links:
                adapter = getattr(getattr(self, name), "adapter", None)
                if adapter is not None and (unknown := adapter.unknown_targets(family)):
                    raise ValueError(
                        f"{name}.adapter.targets has {', '.join(unknown)}, but the linear layers of a {family} are "
                        f"{', '.join(LAYERS[family])}"
                    )
        return self

    @model_validator(mode="after")
    def _judge_comes_first(self) -> Self:
        for number, name in enumerate(self.links):
            config = getattr(self, name)
            if isinstance(config, PosttrainConfig) and config.judged and JUDGE not in self.links[:number]:
                raise ValueError(
                    f"{name} learns from a reward model, but no {JUDGE} comes before it: add the section, and {JUDGE} "
                    f"before {name} where there is a chain"
                )
        return self

    @model_validator(mode="after")
    def _feedback_comes_first(self) -> Self:
        for name in self.links:
            if self.learns_from(name) != "downloaded" and not self._after_feedback(name):
                raise ValueError(
                    f"{name}.learns_from is {self.learns_from(name)}, but no {FEEDBACK} comes before it: add the "
                    f"section, and {FEEDBACK} before {name} where there is a chain"
                )
        return self

    @model_validator(mode="after")
    def _held_out_prompts_are_not_asked(self) -> Self:
        if self.feedback is not None:
            for name in (name for name in self.links if name in METHODS and METHODS[name].pairs == "instructions"):
                share = getattr(self, name).validation_share
                if share > self.feedback.validation_share:
                    raise ValueError(
                        f"{name} holds out a share of {share:g} of the instructions, of which {FEEDBACK} would ask "
                        f"some: set {FEEDBACK}.validation_share to {share:g}"
                    )
        return self

    @model_validator(mode="after")
    def _exported_link_exists(self) -> Self:
        asked = self.export and self.export.link
        models = (BASE, *(name for name in self.links if name not in BESIDE))
        if asked and asked not in (*models, BEST):
            known = f"the models of the chain are {', '.join(models)}; {BEST} chooses among them"
            raise ValueError(f"export.link is {asked}, but {known}")
        return self

    @model_validator(mode="after")
    def _draft_is_released(self) -> Self:
        if self.draft is not None and (self.export is None or not self.export.guessed):
            raise ValueError(
                "there is a draft, and no format of the release that it can guess for: add safetensors or a GGUF to "
                "export.formats, or set `draft: null`"
            )
        return self

    @model_validator(mode="after")
    def _released_adapters_have_their_base(self) -> Self:
        """What lies over a base is of use to those who have that base."""
        if not self.export or not (asked := self.export.needs_base):
            return self
        chain = [name for name in self.links if name not in BESIDE]
        last = self.export.link or (chain[-1] if chain else BASE)
        trained = chain[: chain.index(last) + 1] if last in chain else []
        adapters = {str(name): getattr(getattr(self, name), "adapter", None) for name in trained}
        why = why_not_apart(adapters) if self.base else "the model has no base that others have: add one"
        if last == BEST:
            why = "the best link may be the base itself: name a link in export.link"
        if why:
            raise ValueError(f"export.formats has {' and '.join(asked)}, but {why}, or leave {asked[0]} out")
        return self

    @model_validator(mode="after")
    def _one_beginning(self) -> Self:
        """Documents are what pretraining reads; a base has been trained already."""
        if self.base is None and self.pretrain is None:
            raise ValueError("pretrain is missing: it, or `base`, says what model there is")
        if self.base is not None and self.pretrain is not None:
            raise ValueError("there is a base, which stands in place of pretrain: set `pretrain: null`")
        if self.base is None and not self.download.document_sources:
            raise ValueError(
                "download.sources bring no documents, and without any there is nothing to pretrain on: add one, or "
                "start from a base"
            )
        if self.base is not None and not self.download.benchmark_names:
            raise ValueError(
                "download.benchmarks is empty, and with a base its questions are the text that no stage trains on: "
                "name one"
            )
        return self

    @model_validator(mode="after")
    def _sources_exist(self) -> Self:
        """A filter or a mixture of sources that bring in no documents would fail only after the stages before it."""
        known = self.download.document_sources
        sections = {
            name: section.named_sources()
            for name, section in (("dedup", self.dedup), ("filter", self.filter), ("pretrain", self.pretrain))
            if section is not None and name in self.stage_names
        }
        wrong = [
            f"{section}.{path} names {', '.join(missing)}"
            for section, paths in sections.items()
            for path, named in paths.items()
            if (missing := sorted(set(named) - set(known)))
        ]
        if wrong:
            raise ValueError(f"{'; '.join(wrong)}, but the sources of documents are {', '.join(known)}")
        return self


def _nearest(name: str, known: Sequence[str]) -> str:
    """The names, or those that one may have meant."""
    near = difflib.get_close_matches(name, known)
    return f"{', '.join(known)} (did you mean {' or '.join(near)}?)" if near else ", ".join(known)
