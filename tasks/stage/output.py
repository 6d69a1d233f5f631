"""What a stage writes to: a private folder, a scratch folder that survives a kill, and its counts.

Only `path` becomes the artifact. `scratch` is where shards and checkpoints wait for a resume; it is named by the key,
so what lies there was begun with the same config and the same inputs. `earlier` gives what the stage made before: a
stage may take from it what it would make again byte for byte, and nothing else. `aside` outlasts the run and is
no part of the artifact: there lies what a stage saw of its own work (speeds, curves, traces), which no two runs share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from storage.artifact import Artifact
from storage.errors import AccountingError, EmptyOutput
from storage.manifest import InputRef
from tasks.stage.config import StageConfig
from tasks.stage.display.progress import Observer, Progress
from tasks.stage.protocol import Input, ObtainableStage
from tasks.stage.runtime import Runtime
from tasks.stage.session import current, told_as

Row = Mapping[str, Any]
FindEarlier = Callable[[Sequence[str]], Iterator[Artifact]]


@dataclass
class Output:
    """See the module's docstring. `counts` are results, `facts` are circumstances (speeds, seconds)."""

    stage: str
    path: Path
    scratch: Path
    aside: Path
    runtime: Runtime = field(default_factory=Runtime)
    observer: Observer = field(default_factory=Observer)
    counts: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    uses: dict[str, InputRef] = field(default_factory=dict)
    find_earlier: FindEarlier = lambda changing: iter(())
    remote: str = ""  # where in the store's bucket checkpoints go; empty where the store is a folder

    @classmethod
    def at(cls, folder: Path, *, stage: str = "stage", runtime: Runtime | None = None) -> Output:
        """An output on a plain folder, for tests and notebooks: `folder/out`, `folder/scratch`, `folder/insight`."""
        output = cls(stage, folder / "out", folder / "scratch", folder / "insight", runtime or Runtime())
        output.path.mkdir(parents=True, exist_ok=True)
        output.scratch.mkdir(parents=True, exist_ok=True)
        return output

    def earlier(self, *changing: str) -> Iterator[Artifact]:
        """What this stage made with the same version, config, source code, libraries and inputs, but for the inputs
        with these names, which may differ: the newest first. Nothing in a plain call, and when a refresh was asked for.

        It bears no identity: the result must be the same with it and without (law 4). Its manifest agrees with itself
        and its files are there in their sizes; whoever takes one hashes it.
        """
        return self.find_earlier(changing)

    def count(self, **counts: Any) -> None:
        """Record numbers of the result: the same in, the same counts."""
        self.counts.update(counts)

    def fact(self, **facts: Any) -> None:
        """Record circumstances of this run: speeds, seconds, memory."""
        self.facts.update(facts)

    def table(self, title: str, rows: Sequence[Row]) -> None:
        """A table for people, shown in the Prefect UI on every run, cached or not."""
        self.counts.setdefault("tables", {})[title] = [dict(row) for row in rows]

    def fact_table(self, title: str, rows: Sequence[Row]) -> None:
        """As `table`, of circumstances: what another run of the same would measure otherwise."""
        self.facts.setdefault("tables", {})[title] = [dict(row) for row in rows]

    def account(
        self,
        *,
        documents_in: int,
        kept: int,
        removed: Mapping[str, int],
        quarantined: int = 0,
        what: str = "documents",
        section: str = "",
        may_be_none: bool = False,
    ) -> None:
        """Account for every document, or `what` else the stage reads (law 2): in = kept + removed by reason +
        quarantined. `section` has the thresholds, if it isn't the stage's own; `may_be_none` says that nothing kept is
        a result, and no sign of a fault. Raises AccountingError, EmptyOutput."""
        total = kept + sum(removed.values()) + quarantined
        if total != documents_in:
            raise AccountingError(
                f"{self.stage} saw {documents_in:,} {what} and accounts for {total:,} "
                f"({kept:,} kept, {sum(removed.values()):,} removed, {quarantined:,} quarantined).",
                "This is a defect in the stage; nothing was published.",
            )
        self.count(
            **{
                what: {
                    "in": documents_in,
                    "kept": kept,
                    "removed": dict(sorted(removed.items())),
                    "quarantined": quarantined,
                }
            }
        )
        if kept == 0 and not may_be_none:
            raise EmptyOutput(
                f"{self.stage} kept none of {documents_in:,} {what} (removed: {dict(removed)}).",
                f"Loosen the thresholds under `{section or self.stage}:` or look at the source.",
            )

    def progress(self, done: float, total: float, unit: str, note: str = "") -> None:
        """Tell whoever watches how far the stage is."""
        self.observer.progressed(Progress(self.stage, done, total, unit, note))

    def page(self, name: str, write: Callable[[], str], *, last: bool = False) -> None:
        """Show a page of Markdown that changes while the stage works, such as a curve. `write` is called where
        somebody looks, and not each time; `last` says that it will not change any more."""
        self.observer.paged(self.stage, name, write, last=last)

    def note(self, message: str) -> None:
        """Tell whoever watches something worth a line."""
        self.observer.noted(self.stage, message)

    def warn(self, message: str) -> None:
        """As `note`, of what went wrong or may be: damage, a retry, a result that is less than was asked for."""
        self.observer.warned(self.stage, message)

    def obtain(self, stage: ObtainableStage, config: StageConfig, *inputs: Input, name: str | None = None) -> Artifact:
        """An intermediate artifact that this stage needs (signals, sketches), cached by its own key.

        Within a session it comes from the store; in a plain call it is made in the scratch folder. Who obtains several
        of one stage gives each a `name`, by which those who watch know it.
        """
        name = name or stage.name
        if current() is not None:
            with told_as(stage.name, name, self.stage):
                artifact = stage.obtained(config, inputs)
            self.uses[name] = artifact.origin
            return artifact
        nested = replace(Output.at(self.scratch / name, stage=stage.name, runtime=self.runtime), observer=self.observer)
        stage.function(config, *inputs, nested)
        return Artifact.at(nested.path)

    def obtain_all(
        self, stage: ObtainableStage, calls: Mapping[str, tuple[StageConfig, Sequence[Input]]]
    ) -> dict[str, Artifact]:
        """As `obtain` for calls by name, those that are missing made together, as the stage can."""
        if current() is not None:
            with told_as(stage.name, stage.name, self.stage):
                made = dict(zip(calls, stage.obtained_all([*calls.values()]), strict=True))
            self.uses |= {f"{stage.name}.{name}": artifact.origin for name, artifact in made.items()}
            return made
        assert stage.together is not None, f"{stage.name} makes one artifact at a time"
        outs = {  # by their keys, as other calls of this stage may follow
            name: Output.at(
                self.scratch / stage.name / stage.payload(config, inputs).key(), stage=stage.name, runtime=self.runtime
            )
            for name, (config, inputs) in calls.items()
        }
        for _ in stage.together([(config, inputs, outs[name]) for name, (config, inputs) in calls.items()]):
            pass
        return {name: Artifact.at(out.path) for name, out in outs.items()}

    def check(self) -> None:
        """No silent zero (law 3): raises EmptyOutput for no files at all, or a count that is not finite."""
        if not any(path.is_file() for path in self.path.rglob("*")):
            raise EmptyOutput(f"{self.stage} wrote no file.", "This is a defect in the stage; nothing was published.")
        for name, value in _numbers(self.counts):
            if not math.isfinite(value):
                raise EmptyOutput(f"{self.stage} counted {name} = {value}.", "Look at the stage's inputs and log.")


def _numbers(value: Any, name: str = "") -> list[tuple[str, float]]:
    if isinstance(value, Mapping):
        return [pair for key, item in value.items() for pair in _numbers(item, f"{name}.{key}".lstrip("."))]
    if isinstance(value, list | tuple):
        return [pair for item in value for pair in _numbers(item, name)]
    return [(name, value)] if isinstance(value, float) else []
