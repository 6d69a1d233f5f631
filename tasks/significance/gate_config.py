"""Conditions of a release, as a profile states them under `evaluate.gates`. No numpy: profiles are read quickly."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple, Self

from pydantic import Field, model_validator

from tasks.stage.config import StageConfig

BITS = "bits_per_byte"
SAFETY = "safety-"  # what names of its tasks begin with
_REF = re.compile(r"(?P<ref>[^/:@\s]+/evaluate(@\d+)?|evaluate/[0-9a-f]+(\.\d+)?)(:(?P<model>.+))?", re.DOTALL)


class Reference(NamedTuple):
    """What a gate compares with: an evaluation by its ref, None for the same one, and a model of it, None for the model
    that the gate is about."""

    ref: str | None
    model: str | None


class GateConfig(StageConfig):
    """What must hold of a score, or no release is made."""

    task: str = Field(description=f"a task that is measured, or {BITS}, of which less is better", min_length=1)
    model: str | None = Field(None, description="the model that must meet it (default: the one that is released)")
    metric: str | None = Field(None, description="a metric of the task (default: the one that its score is)")
    at_least: float | None = Field(None, description="the score must not be lower")
    at_most: float | None = Field(None, description="the score must not be higher")
    no_worse_than: str | None = Field(
        None,
        description="a model of this run such as base, or an evaluation such as tiny/evaluate@3 or "
        "tiny/evaluate@3:dpo: on the same questions the model must not be worse, beyond noise",
        min_length=1,
    )
    by: float = Field(0.0, ge=0, description="how much worse than that it may be")

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
        if self.by and self.no_worse_than is None:
            raise ValueError("`by` says how much worse than something: set no_worse_than")
        if self.task == BITS and self.metric is not None:
            raise ValueError(f"{BITS} is a metric itself: leave `metric` out")
        if self.model is not None and self.no_worse_than == self.model:
            raise ValueError(f"{self.model} is never worse than itself")
        return self


def unknown_tasks(gates: Sequence[GateConfig], tasks: Collection[str], safety: bool) -> list[str]:
    """The tasks that gates name and this run does not measure. Where `safety` is measured, its files decide of what it
    has tasks: any of those may be."""
    known = {BITS, *tasks}
    return [gate.task for gate in gates if gate.task not in known and not (safety and gate.task.startswith(SAFETY))]


def unknown_models(gates: Sequence[GateConfig], models: Collection[str]) -> list[str]:
    """What gates say of models that this run does not measure, a phrase each: a slip of the pen, which would otherwise
    fail the gate once everything has been measured. `models` are the names of those that it measures."""
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
