"""Plan a profile and run it, as the commands `gristmill plan` and `gristmill run` do."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from os import PathLike
from typing import TYPE_CHECKING, overload

from gristmill.settings import Overrides, ProfileLike, override_list, python_words, stage_list, stage_name
from gristmill.stored import Artifact
from storage.errors import StoreError
from storage.units import duration, size_of
from tasks.checks.quiet import keep_quiet

if TYPE_CHECKING:
    from flows import session as flow_session

HEADS = ("stage", "", "size", "time", "why")


@dataclass(frozen=True)
class PlannedStage:
    """A stage as a plan finds it: `hit` if the store has its artifact, otherwise `why` it must be made. `seconds` and
    `size` in bytes are those of the artifact, or an estimate from the source `by`, or None if nothing is known."""

    name: str
    hit: bool
    why: str
    seconds: float | None = None
    size: int | None = None
    by: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """The stage as a row of a table."""
        about = "" if self.hit else "~"
        size = "?" if self.size is None else about + size_of(self.size)
        time = "" if self.hit else "?" if self.seconds is None else about + duration(self.seconds)
        return self.name, "HIT" if self.hit else "MISS", size, time, self.why


class Plan(Sequence[PlannedStage]):
    """The stages of a run in their order. It shows as a table.

    >>> [stage.name for stage in gm.plan("tiny") if not stage.hit]
    """

    def __init__(self, profile: str, stages: Sequence[PlannedStage]) -> None:
        self.profile = profile
        self._stages = tuple(stages)

    @overload
    def __getitem__(self, key: int | str) -> PlannedStage: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[PlannedStage]: ...
    def __getitem__(self, key: int | str | slice) -> PlannedStage | Sequence[PlannedStage]:
        """A stage by its place or by its name. Raises StoreError for a name that the plan doesn't have."""
        if not isinstance(key, str):
            return self._stages[key]
        found = [stage for stage in self._stages if stage.name == key]
        if not found:
            names = ", ".join(stage.name for stage in self._stages)
            raise StoreError(f"{key} is not a stage of the plan.", f"It has {names}.")
        return found[0]

    def __len__(self) -> int:
        return len(self._stages)

    @property
    def missing(self) -> list[str]:
        """The names of the stages that the run would make."""
        return [stage.name for stage in self._stages if not stage.hit]

    @property
    def seconds(self) -> float | None:
        """How long these take together, or None if nothing is known of one of them."""
        known = self._known_seconds()
        return sum(known) if len(known) == len(self.missing) else None

    def _known_seconds(self) -> list[float]:
        return [stage.seconds for stage in self._stages if not stage.hit and stage.seconds is not None]

    def _summary(self) -> str:
        if not self.missing:
            return f"{self.profile}: nothing to make."
        known = self._known_seconds()
        unknown = len(self.missing) - len(known)
        about = [f"about {duration(sum(known))}"] * bool(known) + [f"unknown for {unknown}"] * bool(unknown)
        return f"{self.profile}: {len(self.missing)} of {len(self)} stages to make, {', '.join(about)}."

    def __repr__(self) -> str:
        rows = [HEADS, *(stage.cells for stage in self._stages)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, self._summary()])

    def _repr_html_(self) -> str:
        def row(tag: str, cells: Sequence[str]) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        table = row("th", HEADS) + "".join(row("td", stage.cells) for stage in self._stages)
        return f"<table>{table}</table><p>{escape(self._summary())}</p>"


def plan(
    profile: ProfileLike = "tiny",
    overrides: Overrides = None,
    *,
    store: str | PathLike[str] | None = None,
    to: str | None = None,
    refresh: Sequence[str] = (),
) -> Plan:
    """Look which stages a run would make, and why, without making anything.

    `profile` is a name, a path to a YAML file, or a whole profile as a mapping. `overrides` maps keys such as
    `pretrain.steps` to values, and `store` replaces the profile's. Raises ConfigError for a wrong profile.

    >>> gm.plan("tiny", {"filter.toxicity.max_score": 0.5})
    """
    keep_quiet()
    from flows.estimates.arithmetic import gpu_of, training_work
    from flows.estimates.expected import sizes
    from flows.estimates.stages import estimates
    from flows.plan import plan as plan_stages
    from flows.session import session_of
    from profiles.load import load

    with python_words(profile) as name:
        loaded = load(name, override_list(overrides, store))
        session = session_of(loaded, stage_name(to), stage_list(refresh))
        lines = plan_stages(loaded, session)
    gpu = gpu_of(loaded.runtime)
    work = training_work(loaded, cuda=gpu is not None)
    expected = estimates(loaded, session.store, lines, work, gpu)
    bytes_of = sizes(loaded, lines, work)
    found = []
    for line in lines:
        guess = expected.get(line.name)
        seconds = guess.seconds if guess else None
        if line.hit and line.manifest:
            seconds = line.manifest.facts.get("seconds")
        by = guess.source if guess else ""
        found.append(PlannedStage(line.name, line.hit, line.why, seconds, bytes_of.get(line.name), by))
    return Plan(loaded.name, found)


class Run(Mapping[str, Artifact]):
    """The artifacts that a run took from the store or made, by stage.

    >>> run = gm.run("tiny", to="filter")
    >>> run["filter"].path, run["filter"].counts, run.made
    """

    def __init__(self, run: flow_session.Run) -> None:
        self.profile = run.profile.name
        self._steps = {name: run.session.steps[name] for name in run.profile.stage_names if name in run.session.steps}

    def __getitem__(self, stage: str) -> Artifact:
        """The artifact of a stage. Raises StoreError, which is a KeyError too, for one that the run didn't reach."""
        if stage not in self._steps:
            raise NotReached(f"The run did not reach {stage}.", f"It reached {', '.join(self._steps) or 'no stage'}.")
        return Artifact(self._steps[stage].artifact)

    def __iter__(self) -> Iterator[str]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def made(self) -> list[str]:
        """The stages that this run made. The others came from the store."""
        return [name for name, step in self._steps.items() if not step.cached]

    def __repr__(self) -> str:
        return f"<Run of {self.profile}: {len(self)} stages, {len(self.made)} made>"


class NotReached(StoreError, KeyError):
    """A run did not reach a stage. A KeyError too, so that `run.get` and `in` work as for any mapping."""


def run(
    profile: ProfileLike = "tiny",
    overrides: Overrides = None,
    *,
    store: str | PathLike[str] | None = None,
    to: str | None = None,
    refresh: Sequence[str] = (),
    approve: bool = False,
    progress: bool = True,
) -> Run:
    """Run a profile to its end, or to the stage `to`, making only what the store lacks.

    The stages run in this process. Prefect shows the run if PREFECT_API_URL names a server, such as that of
    `gristmill ui`, and takes no part otherwise. `profile`, `overrides` and `store` are as for `plan`. `refresh` names
    stages to make again, and `approve` stands for the approval that `runtime.approve` asks for. Progress is a line
    every ten seconds in a notebook. An interrupt ends the run with KeyboardInterrupt, and the next one resumes. Raises
    what the stages raise, all of it a GristmillError.

    >>> gm.run("tiny", {"pretrain.steps": 100})["evaluate"].scores
    """
    keep_quiet()
    from flows.commands.run import run_pipeline
    from flows.tables import Terminal
    from storage.credentials import guard

    hook = sys.excepthook
    guard()
    try:
        console, settings = Terminal(quiet=not progress), override_list(overrides, store)
        with python_words(profile) as name:
            done = run_pipeline(
                console, name, settings, stage_name(to), stage_list(refresh), paranoid=False, yes=approve
            )
    except SystemExit as ended:  # how the command ends after a signal: in a notebook an interrupt
        raise KeyboardInterrupt(f"exit status {ended.code}") from None
    finally:
        sys.excepthook = hook  # perhaps that of a debugger. Only the log stays redacted
    return Run(done)
