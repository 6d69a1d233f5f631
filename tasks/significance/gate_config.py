"""Conditions of a release, as a profile states them under `evaluate.gates`. No numpy: profiles are read quickly."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple, Self

from pydantic import Field, model_validator

from tasks.stage.config import StageConfig

BITS = "bits_per_byte"
SHARES = ("acc", "acc_norm", "exact_match", "pass@1", "prompt_level_strict_acc")  # metrics between 0 and 1
SAFETY = "safety-"  # the prefix of its tasks' names
_REF = re.compile(r"(?P<ref>[^/:@\s]+/evaluate(@\d+)?|evaluate/[0-9a-f]+(\.\d+)?)(:(?P<model>.+))?", re.DOTALL)


class Reference(NamedTuple):
    """The reference of a gate: an evaluation by its ref, None for the same one, and a model of it, None for the model
    that the gate is about."""

    ref: str | None
    model: str | None


class GateConfig(StageConfig):
    """A condition that a score must meet, or no release is made."""

    task: str = Field(description=f"a measured task, or {BITS}, of which less is better", min_length=1)
    model: str | None = Field(None, description="the model that must meet the condition (default: the released one)")
    metric: str | None = Field(None, description="a metric of the task (default: its headline)")
    source: str | None = Field(
        None,
        min_length=1,
        exclude_if=lambda value: value is None,  # so that keys from before this field stay valid
        description=f"a source of held-out text, with {BITS}: only its documents count (default: all)",
    )
    at_least: float | None = Field(None, description="lowest allowed score")
    at_most: float | None = Field(None, description="highest allowed score")
    no_worse_than: str | None = Field(
        None,
        description="a model of this run such as base, or an evaluation such as tiny/evaluate@3 or "
        "tiny/evaluate@3:dpo: on the same questions the model must not be worse, beyond noise",
        min_length=1,
    )
    by: float = Field(0.0, ge=0, description="how much worse than no_worse_than the score may be")

    @property
    def reference(self) -> Reference:
        """What `no_worse_than` names."""
        met = _REF.fullmatch(self.no_worse_than or "")
        return Reference(met["ref"], met["model"]) if met else Reference(None, self.no_worse_than)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        asked = [name for name in ("at_least", "at_most", "no_worse_than") if getattr(self, name) is not None]
        if not asked:
            raise ValueError("a gate needs at_least, at_most or no_worse_than")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"no score is at least {self.at_least:g} and at most {self.at_most:g}")
        if self.at_most is not None and self.at_most < 0 and self._never_negative:
            raise ValueError(f"at_most is {self.at_most:g}, but no score of {self.metric or self.task} is below 0")
        if self.at_least is not None and self.at_least > 1 and self.metric in SHARES:
            raise ValueError(f"at_least is {self.at_least:g}, but {self.metric} is a share, at most 1")
        if self.by and self.no_worse_than is None:
            raise ValueError("`by` needs no_worse_than")
        if self.task == BITS and self.metric is not None:
            raise ValueError(f"{BITS} is a metric itself: remove `metric`")
        if self.task == BITS and self.at_least is not None:
            raise ValueError(f"less is better of {BITS}: use at_most")
        if self.source is not None and self.task != BITS:
            raise ValueError(f"`source` is of {BITS}: remove it")
        if self.model is not None and self.no_worse_than == self.model:
            raise ValueError(f"{self.model} is never worse than itself")
        return self

    @property
    def _never_negative(self) -> bool:
        return self.task == BITS or self.metric in SHARES


def unknown_tasks(gates: Sequence[GateConfig], tasks: Collection[str], safety: bool) -> list[str]:
    """The tasks that gates name and this run doesn't measure. With `safety`, any of its tasks may exist, as its files
    decide which."""
    known = {BITS, *tasks}
    return [gate.task for gate in gates if gate.task not in known and not (safety and gate.task.startswith(SAFETY))]


def unknown_models(gates: Sequence[GateConfig], models: Collection[str]) -> list[str]:
    """A phrase for each model that gates name and this run doesn't measure: a typo that would otherwise fail the gate
    only after everything has been measured. `models` are the names of the measured ones."""
    found = []
    for number, gate in enumerate(gates):
        ref, other = gate.reference
        named = {"model": gate.model, "no_worse_than": other if ref is None else None}
        found += [
            f"gates.{number}.{field} is {name}"
            for field, name in named.items()
            if name is not None and name not in models
        ]
    return found
