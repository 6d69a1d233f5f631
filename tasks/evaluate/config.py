"""The section `evaluate` of a profile."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tasks.base.config import BaseConfig
from tasks.evaluate.language.config import LanguageConfig
from tasks.evaluate.other_models.config import NamedModel
from tasks.evaluate.safety.config import FilterSections, SafetyConfig
from tasks.evaluate.score.config import SEED, QuestionsConfig, ScoreConfig
from tasks.evaluate.side_by_side.config import SideBySideConfig
from tasks.sandbox.config import SandboxConfig
from tasks.significance.gate_config import GateConfig
from tasks.stage.config import StageConfig

ORIGINAL = "original"  # the name of a base before it is trained on documents
PROMPTS = [
    "What is a river?",
    "Who was Isaac Newton?",
    "Where is the city of Lyon?",
    "What is 12 plus 30?",
    "Name three animals that live in the sea.",
    "Is the moon larger than the earth?",
    "How do I make a cup of tea?",
    "Write one sentence about winter.",
    "Translate into French: good morning.",
    "Tell me a short story about a dog.",
]


class TaskConfig(QuestionsConfig):
    """A benchmark with its own settings."""

    task: str = Field(description="name of a benchmark")
    name: str | None = Field(None, description="its name in tables, if it is used in several ways")

    @property
    def label(self) -> str:
        """Its name in tables."""
        return self.name or self.task


class EvaluateConfig(StageConfig):
    """Which benchmarks, how much of each, and the other measurements of models."""

    tasks: list[str | TaskConfig] | None = Field(
        None, description="benchmarks by name, or with settings of their own (default: all that download made)"
    )
    max_items: int | None = Field(
        None, ge=1, description="number of questions used of each benchmark, the first ones, unless it sets a limit"
    )
    seed: int = Field(SEED, ge=0, description="seed for choosing examples and for sampling")
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="dtype of weights and computation")
    language: LanguageConfig = Field(LanguageConfig(), description="bits per byte on held-out text and on text files")
    side_by_side: SideBySideConfig | None = Field(
        None, description="models compared by their answers, in pairs, by a judge"
    )
    models: list[NamedModel] = Field(
        [],
        exclude_if=lambda models: not models,  # so that keys from before this field stay the same
        description="models besides the links of the chain: third-party ones, links in a release's formats, endpoints",
    )
    snapshots: list[Annotated[int, Field(ge=1)]] = Field(
        [], description="pretraining steps whose snapshots are measured too, for curves over tokens"
    )
    safety: SafetyConfig | None = Field(
        None, description="toxicity and personal data of continuations, memorisation, refusals, bias (null: none)"
    )
    gates: list[GateConfig] = Field([], description="conditions of a release")
    sandbox: SandboxConfig = Field(SandboxConfig(), description="sandbox that runs models' programs")
    dirty_share: float = Field(
        0.0, ge=0, lt=1, description="share of a question's n-grams in the training text above which it is dirty"
    )
    prompts: list[str] = Field(PROMPTS, description="prompts that every model answers, side by side (empty: none)")
    answer_tokens: int = Field(48, ge=1, description="maximum length of an answer to them, in tokens")
    batch_size: int = Field(32, ge=1, description="prompts answered at a time in benchmarks that need text")

    def asked(self, known: list[str]) -> list[TaskConfig]:
        """The benchmarks, by default all that are `known`."""
        chosen = self.tasks if self.tasks is not None else [*known]
        return [TaskConfig(task=task) if isinstance(task, str) else task for task in chosen]

    @property
    def asks_judge(self) -> bool:
        """Whether the reward model of the profile compares answers."""
        return self.side_by_side is not None and self.side_by_side.judge == "reward"

    def with_filter(self, filter: FilterSections | None) -> EvaluateConfig:
        """A copy with the filter's classifier and recognisers, if safety is measured by them. Raises ConfigError if the
        filter lacks them."""
        return self if self.safety is None else self.model_copy(update={"safety": self.safety.with_filter(filter)})

    def with_release(self, link: str) -> EvaluateConfig:
        """A copy in which gates without a model are about the released link."""
        gates = [gate if gate.model else gate.model_copy(update={"model": link}) for gate in self.gates]
        return self.model_copy(update={"gates": gates})

    def with_original(self, base: BaseConfig) -> EvaluateConfig:
        """A copy that also measures the base as it was before it was trained on documents, if a gate names it."""
        named = {name for gate in self.gates for name in (gate.model, gate.no_worse_than)}
        if ORIGINAL not in named:
            return self
        return self.model_copy(update={"models": [*self.models, NamedModel(name=ORIGINAL, base=base)]})

    def named_sources(self) -> dict[str, list[str]]:
        """The sources that this config names, by the path of the field."""
        return {f"gates.{number}.source": [gate.source] for number, gate in enumerate(self.gates) if gate.source}

    def score(self, task: TaskConfig, definition: str | None) -> ScoreConfig:
        """The settings of one benchmark's scores."""
        return ScoreConfig(
            task=task.task,
            definition=definition,
            shots=task.shots,
            limit=task.limit or self.max_items,
            chat=task.chat,
            cluster=task.cluster,
            generation=task.generation,
            samples=task.samples,
            k=task.k,
            seed=self.seed,
            dtype=self.dtype,
            batch_size=self.batch_size,
            sandbox=self.sandbox,
        )

    @property
    def named(self) -> list[str]:
        """The names of the models outside the chain."""
        return [model.name for model in self.models]

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        labels = [task.label for task in self.asked([])]
        for field, names in (("models", self.named), ("tasks", labels)):
            if repeated := sorted(name for name, number in Counter(names).items() if number > 1):
                raise ValueError(f"{field} has {', '.join(repeated)} twice: give each its own name")
        return self
