"""A post-training method: everything that the stage and its child need to know about one.

A method is one file under methods/ and one row of its table. See methods/sft.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from storage.artifact import Artifact
from tasks.posttrain.check import check_here, check_runtime, check_sampling, check_whole_rows
from tasks.posttrain.config import PosttrainConfig
from tasks.posttrain.rewards.config import Reward, measures_of
from tasks.posttrain.rewards.outside import check_here as check_rewards_here
from tasks.posttrain.rewards.outside import fingerprints
from tasks.posttrain.rows.form import Row, RowForm
from tasks.stage.decorator import Stage, stage
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tasks.training.adopted_model import check_model
from tasks.training.device_lock import own_turn

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, Trainer

Config = TypeVar("Config", bound=PosttrainConfig)


@dataclass(frozen=True)
class TrainerParts(Generic[Config]):
    """The parts that a method builds its trainer from.

    `arguments` go to TRL's config class, `common` (model, data, tokenizer, callbacks) to its trainer. `load_model`
    loads another copy of the starting model, as a reference, once TRL's config exists. `teacher` is the folder of the
    model to imitate, `top_tokens` that of a teacher's likeliest tokens, and `judge` that of the reward model. No row
    has more than `max_length` tokens. `digests` are those of files outside the store, as in the artifact's key, and
    `scratch` is a folder that a resumed run has again.
    """

    config: Config
    runtime: Runtime
    max_length: int
    arguments: Mapping[str, Any]
    common: Mapping[str, Any]
    load_model: Callable[[], PreTrainedModel]
    teacher: Path | None = None
    top_tokens: Path | None = None
    judge: Path | None = None
    digests: Mapping[str, str] = field(default_factory=dict)
    scratch: Path = Path()


@dataclass(frozen=True)
class Trained:
    """A saved model, for the method to measure: its folder, its rows, and the device to compute on."""

    folder: Path
    train: Sequence[Row]
    held_out: Sequence[Row]
    device: torch.device


@dataclass(frozen=True)
class Method(Generic[Config]):
    """One post-training method.

    `pairs` names the part of an artifact that holds its pairs, and `instead` the part to read if that one is missing.
    `loss_unit` labels the loss curve. `measures` maps TRL's names to ours: log.jsonl holds them for each step and
    validation, the manifest for the last validation. `summary` names further counts for the stage's summary line.
    `rows_of` is set if the form of rows depends on the config, and `facts` if a finished trainer has facts of the run
    to report.

    `rewards_of` gives the rewards of a config, for methods that learn from them: their measures, their files in the key
    and their checks follow from it. `sources_of` gives digests of what else a config reads outside the store.

    `check_more` raises an error for a runtime that the method can't have, and, if its last argument is true, for what
    this machine lacks. `check_rows` raises one if the rendered rows, to train on and held out, are unusable as a whole.

    `load` loads the model to train, unless that is the causal one of the folder. If its last argument is true, it
    leaves the weights unread, as the engine divides them. `conclude` measures the saved model, on one process, and
    `report` reports that in the stage. `curve` is the measure that is plotted and whose best value is reported: the
    lowest loss, or the highest of another. `drawn` names further measures to plot, in a grid. A method that
    `samples` has the model answer prompts as it trains. One that `shares_rows` reads TRL's fused head only, so that
    processes can share the tokens of a row.
    """

    name: str
    config: type[Config]
    pairs: str
    rows: RowForm
    make_trainer: Callable[[TrainerParts[Config]], Trainer]
    loss_unit: str
    measures: Mapping[str, str]
    summary: tuple[str, ...] = ()
    instead: str | None = None
    load: Callable[[Path, Config, bool], PreTrainedModel] | None = None
    conclude: Callable[[Trained], dict[str, Any]] | None = None
    report: Callable[[dict[str, Any], Output], None] | None = None
    curve: str = "loss"
    drawn: tuple[str, ...] = ()
    samples: bool = False
    shares_rows: bool = False
    rows_of: Callable[[Config], RowForm] | None = None
    facts: Callable[[Any], dict[str, Any]] | None = None
    check_rows: Callable[[Config, Sequence[Row], Sequence[Row]], None] | None = None
    rewards_of: Callable[[Config], Sequence[Reward]] | None = None
    sources_of: Callable[[Config], Mapping[str, str]] | None = None
    check_more: Callable[[Config, Runtime, bool], None] | None = None

    def reads(self, roles: Collection[str]) -> str:
        """The part that it reads of an artifact with pairs of these roles."""
        return self.pairs if self.instead is None or self.pairs in roles else self.instead

    def form(self, config: Config) -> RowForm:
        """The row form to render rows with under a config."""
        return self.rows if self.rows_of is None else self.rows_of(config)

    def measures_of(self, config: Config) -> dict[str, str]:
        """The measures under a config: those of the method, and of its rewards."""
        return {**self.measures, **(measures_of(self.rewards_of(config)) if self.rewards_of else {})}

    def fingerprints(self, config: Config) -> dict[str, str]:
        """Digests of what the method reads outside the store. Raises SourceError for a missing file."""
        found = fingerprints(self.rewards_of(config)) if self.rewards_of else {}
        return {**found, **(self.sources_of(config) if self.sources_of else {})}

    def stage(self, version: int) -> Callable[[Callable[..., None]], Stage]:
        """The decorator `@stage` with the arguments that all methods share."""
        return stage(
            version=version,
            runtime=("data", "compute", "training", "posttrain", "endpoint"),
            sources=self.fingerprints if self.rewards_of or self.sources_of else None,
            device_lock=own_turn,
            check=self.check_runtime,
            check_here=self.check_here,
            adopted=self.check_adopted,
        )

    def check_runtime(self, config: Config, runtime: Runtime) -> None:
        """Raises ConfigError for runtime settings that this method can't honour."""
        check_runtime(self.name, config, runtime)
        if self.samples:
            check_sampling(self.name, runtime)
        if self.check_more:
            self.check_more(config, runtime, False)
        if not self.shares_rows:
            check_whole_rows(self.name, runtime)

    def check_here(self, config: Config, runtime: Runtime) -> None:
        """Raises ConfigError and SourceError for what this machine lacks: devices, and what rewards need."""
        check_here(config, runtime)
        if self.check_more:
            self.check_more(config, runtime, True)
        if self.rewards_of:
            check_rewards_here(self.rewards_of(config), self.name)

    def check_adopted(self, config: Config, folder: Artifact, inputs: Mapping[str, Artifact]) -> None:
        """Check that a folder made elsewhere has a model/ with the tokenizer of the stage's starting model.
        Raises DamagedArtifact, TokenizerMismatch."""
        check_model(folder, inputs["model"].path)
