"""The sections of a profile: every choice of a run, in two halves.

Everything outside `runtime` changes the result, and enters the key of the stage that reads it and no other. Nothing in
`runtime` enters a key. Each stage's section is its own config class, imported from the stage.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from profiles.stage_names import AT_THE_END, CONTINUED, EXTENDED, FROM_BASE, FROM_SCRATCH, TRAINED
from tasks.base import BaseConfig
from tasks.dedup import DedupConfig
from tasks.download import DownloadConfig
from tasks.draft import DraftConfig
from tasks.evaluate import EvaluateConfig
from tasks.export import ExportConfig
from tasks.filter import FilterConfig
from tasks.posttrain.best_of_n import BestOfNConfig
from tasks.posttrain.config import LearnsFrom, PreferenceConfig
from tasks.posttrain.feedback import FeedbackConfig
from tasks.posttrain.merge import MergeConfig
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
from tasks.stage.runtime import Runtime
from tasks.synthesise import SynthesiseConfig
from tasks.tokenize import TokenizeConfig
from tasks.tokenizer import TokenizerConfig
from tasks.training.chain import LINKS, MAKES, LinkName

NAME = r"^[a-z0-9][a-z0-9_-]{0,99}$"  # file names contain it


class Sections(BaseModel):
    """Every section, checked on its own, and what follows from them. `Profile` checks that they agree."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(
        description="lower-case letters, digits, - and _. Names the refs: NAME/pretrain, NAME/export, …. Default for a "
        "profile that extends another: the name of its file",
        pattern=NAME,
    )
    description: str = Field("", description="one line for `gristmill profile list`")
    download: DownloadConfig = Field(description="sources of documents, instructions, preferences and benchmarks")
    synthesise: SynthesiseConfig | None = Field(
        None, description="documents that a model writes from downloaded ones, by an endpoint (null: none)"
    )
    dedup: DedupConfig | None = Field(
        default_factory=DedupConfig, description="exact and near-duplicate removal (null: none)"
    )
    filter: FilterConfig | None = Field(
        default_factory=FilterConfig, description="signals and the thresholds over them (null: everything is kept)"
    )
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig, description="byte-level BPE, new or of a base")
    tokenize: TokenizeConfig = Field(default_factory=TokenizeConfig, description="token shards and their split")
    pretrain: PretrainConfig | None = Field(
        None, description="the model and how it is trained on documents. With a `base`, that is trained on"
    )
    base: BaseConfig | None = Field(
        None,
        description="an existing model. Without `pretrain`, post-training starts from it, and of the stages before it "
        "only download runs, and `filter.pii` on its pairs. With `pretrain`, it is trained on documents first, in the "
        "ids of its tokenizer",
    )
    prune: PruneConfig | None = Field(
        None, description="remove what the model uses least. The links after it heal the model (null: none)"
    )
    distill: DistillConfig | None = Field(None, description="learning the distributions of a teacher (null: none)")
    sft: SftConfig | None = Field(default_factory=SftConfig, description="supervised fine-tuning (null: none)")
    best_of_n: BestOfNConfig | None = Field(
        None, description="the best of several answers as instructions and pairs, made beside the chain (null: none)"
    )
    feedback: FeedbackConfig | None = Field(
        None, description="a model's preferences among its own answers, made beside the chain (null: none)"
    )
    orpo: OrpoConfig | None = Field(None, description="odds ratio preference optimization (null: none)")
    cpo: CpoConfig | None = Field(None, description="contrastive preference optimization, or SimPO (null: none)")
    kto: KtoConfig | None = Field(None, description="Kahneman-Tversky optimization (null: none)")
    dpo: DpoConfig | None = Field(default_factory=DpoConfig, description="direct preference optimization (null: none)")
    reward: RewardConfig | None = Field(
        None, description="a reward model, trained beside the chain from the link before it (null: none)"
    )
    ppo: PpoConfig | None = Field(
        None, description="proximal policy optimization, from rewards of the model of `reward` (null: none)"
    )
    grpo: GrpoConfig | None = Field(
        None, description="group relative policy optimization, from rewards of sampled answers (null: none)"
    )
    merge: MergeConfig | None = Field(
        None, description="several models that were trained from the base, merged into one (null: none)"
    )
    chain: list[LinkName] | None = Field(
        None, description=f"order of post-training (default: {', '.join(LINKS)}). A link that it omits must be null"
    )
    evaluate: EvaluateConfig | None = Field(
        default_factory=EvaluateConfig, description="benchmarks and bits per byte (null: none)"
    )
    draft: DraftConfig | None = Field(
        None, description="a small model that predicts the released one's tokens, released with it (null: none)"
    )
    export: ExportConfig | None = Field(
        default_factory=ExportConfig, description="formats of the release and tolerances (null: no release)"
    )
    runtime: Runtime = Field(default_factory=Runtime, description="how to run. Never part of a key")

    @property
    def stage_names(self) -> tuple[str, ...]:
        """The stages of this profile, in order. A null section has none."""
        on_documents = CONTINUED if self.tokenizer.extend is None else EXTENDED
        before = FROM_SCRATCH if self.base is None else FROM_BASE if self.pretrain is None else on_documents
        names = (*before, *self.links, *AT_THE_END)
        return tuple(name for name in names if getattr(self, name) is not None)

    def names_to(self, until: str | None) -> tuple[str, ...]:
        """The stages of a run that ends with `until`."""
        names = self.stage_names
        return names[: names.index(until) + 1] if until in names else names

    @property
    def document_sources(self) -> list[str]:
        """The names of the sources of documents, with those that a model writes."""
        return [*self.download.document_sources, *(self.synthesise.new_sources if self.synthesise else ())]

    @property
    def links(self) -> tuple[LinkName, ...]:
        """The stages of post-training, in order."""
        return tuple(name for name in self.chain or LINKS if getattr(self, name) is not None)

    def pool_of(self, name: str) -> str | None:
        """The work pool that makes a stage. None if the run itself does."""
        pools = self.runtime.pools
        if name in pools.stages:
            return pools.stages[name]
        if name in AT_THE_END:
            return pools.release
        return pools.training if name in TRAINED else pools.data

    def learns_from(self, name: str) -> LearnsFrom:
        """The origin of the pairs of a link."""
        config = getattr(self, name)
        if not isinstance(config, PreferenceConfig | SftConfig):
            return "downloaded"
        makers = self.makers_before(name)
        return config.learns_from or (makers[-1] if makers else "downloaded")

    def reads_download(self, name: str) -> bool:
        """Whether a link learns from pairs of download."""
        return self.learns_from(name) in ("downloaded", "both")

    def role_of_made(self, name: str) -> str:
        """The role of rows made by earlier links that a link can learn from."""
        return "preferences" if isinstance(getattr(self, name), PreferenceConfig) else "instructions"

    def makers_before(self, name: str) -> list[LearnsFrom]:
        """The links before one that make rows which it can learn from."""
        earlier, role = self.links[: self.links.index(name)], self.role_of_made(name)
        able = (maker for maker, roles in MAKES.items() if role in roles and maker in earlier)
        return sorted(able, key=earlier.index)
