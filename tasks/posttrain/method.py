"""What a post-training method is: everything that the stage and its child need to know of one.

A method is one file under methods/ and one row of its table; see methods/sft.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from storage.artifact import Artifact
from tasks.posttrain.check import check_alone, check_here, check_runtime
from tasks.posttrain.config import PosttrainConfig
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
    """What a method makes its trainer of.

    `arguments` go to TRL's config class, `common` (model, data, tokenizer, callbacks) to its trainer; `load_model`
    loads the model that the stage starts from once more, as a reference; `teacher` is the folder of the model that is
    imitated, and `judge` that of the reward model. No row has more than `max_length` tokens.
    """

    config: Config
    runtime: Runtime
    max_length: int
    arguments: Mapping[str, Any]
    common: Mapping[str, Any]
    load_model: Callable[[], PreTrainedModel]
    teacher: Path | None = None
    judge: Path | None = None


@dataclass(frozen=True)
class Trained:
    """What a method may measure when its model is saved: the folder, its rows, and where to compute."""

    folder: Path
    train: Sequence[Row]
    held_out: Sequence[Row]
    device: torch.device


@dataclass(frozen=True)
class Method(Generic[Config]):
    """One post-training method.

    `pairs` names the part of an artifact with its pairs, and `instead` the one that it reads where there is none of
    these. `loss_unit` labels the loss curve. `measures` maps TRL's names to ours: log.jsonl holds them for each step
    and validation, the manifest for the last validation. `summary` names further counts for the stage's summary line.
    `rows_of` is given where the form of rows depends on the config, and `facts` where a trainer that is done has
    something to say of this run.

    `check_rows` raises what is wrong with rendered rows, those to train on and those held out, as a whole.

    `load` loads the model that is trained, where it is not the causal one of the folder. `conclude`, on one process,
    measures the model that was saved, and `report` tells the stage of it. `curve` is the measure that is drawn and
    whose best is told: the lowest loss, or the highest of another. A method that is `alone` trains in one process.
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
    load: Callable[[Path, Config], PreTrainedModel] | None = None
    conclude: Callable[[Trained], dict[str, Any]] | None = None
    report: Callable[[dict[str, Any], Output], None] | None = None
    curve: str = "loss"
    alone: bool = False
    rows_of: Callable[[Config], RowForm] | None = None
    facts: Callable[[Any], dict[str, float]] | None = None
    check_rows: Callable[[Config, Sequence[Row], Sequence[Row]], None] | None = None

    def reads(self, roles: Collection[str]) -> str:
        """The part that it reads where there are pairs of these roles."""
        return self.pairs if self.instead is None or self.pairs in roles else self.instead

    def form(self, config: Config) -> RowForm:
        """How rows are rendered under a config."""
        return self.rows if self.rows_of is None else self.rows_of(config)

    def stage(self, version: int) -> Callable[[Callable[..., None]], Stage]:
        """`@stage` with what all methods have in common."""
        return stage(
            version=version,
            runtime=("data", "compute", "training", "posttrain"),
            device_lock=own_turn,
            check=self.check_runtime,
            check_here=check_here,
            adopted=self.check_adopted,
        )

    def check_runtime(self, config: Config, runtime: Runtime) -> None:
        """Raises ConfigError for settings of the runtime that this method can't honour."""
        check_runtime(self.name, config, runtime)
        if self.alone:
            check_alone(self.name, runtime)

    def check_adopted(self, config: Config, folder: Artifact, inputs: Mapping[str, Artifact]) -> None:
        """Check that a folder made elsewhere has a model/ with the tokenizer of the model that the stage starts from.
        Raises DamagedArtifact, TokenizerMismatch."""
        check_model(folder, inputs["model"].path)
