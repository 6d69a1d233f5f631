"""The output of a stage: a private folder, a scratch folder that survives a kill, and its counts.

Only `path` becomes the artifact. `scratch` keeps shards and checkpoints for a resume. It is named by the key, so its
content was begun with the same config and inputs. `earlier` gives the stage's previous artifacts: a stage may take from
them only what it would make again byte for byte. `aside` outlasts the run but isn't part of the artifact: it holds
records of the work itself (speeds, curves, traces), which differ from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
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
FindEarlier = Callable[[Callable[[str], bool], Collection[str]], Iterator[Artifact]]


@dataclass
class Output:
    """See the module's docstring. `counts` are results, `facts` describe this run (speeds, seconds)."""

    stage: str
    path: Path
    scratch: Path
    aside: Path
    runtime: Runtime = field(default_factory=Runtime)
    observer: Observer = field(default_factory=Observer)
    counts: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    uses: dict[str, InputRef] = field(default_factory=dict)
    find_earlier: FindEarlier = lambda changes, besides: iter(())
    ever_made: Callable[[], Iterator[Artifact]] = lambda: iter(())
    """All artifacts of this stage, of whatever version, config and inputs, the newest first. Only for what is worth the
    same in any of them, such as an answer that was paid for. Nothing in a plain call or on a refresh."""
    unfinished: Callable[[], list[Path]] = list
    """As `ever_made`, the scratch folders of its other artifacts that were begun and not finished. Others may be
    writing there."""
    branches: Callable[[str], AbstractContextManager[Path | None]] = lambda name: nullcontext()
    """A folder in the store for states that artifacts with something in common, which `name` is a digest of, may begin
    from. No collection removes it within the block. None in a plain call, in a bucket and on a refresh."""
    remote: str = ""  # the place of checkpoints in the store's bucket, empty if the store is a folder

    @classmethod
    def at(cls, folder: Path, *, stage: str = "stage", runtime: Runtime | None = None) -> Output:
        """An output on a plain folder, for tests and notebooks: `folder/out`, `folder/scratch`, `folder/insight`."""
        output = cls(stage, folder / "out", folder / "scratch", folder / "insight", runtime or Runtime())
        output.path.mkdir(parents=True, exist_ok=True)
        output.scratch.mkdir(parents=True, exist_ok=True)
        return output

    def earlier(self, changes: Callable[[str], bool], besides: Collection[str] = ()) -> Iterator[Artifact]:
        """This stage's artifacts with the same version, config, source code, libraries and inputs, the newest first.
        Inputs whose name `changes`, and the fields of the config in `besides`, may differ. Nothing in a plain call or
        on a refresh.

        They don't enter the key: the result must be the same with and without them (law 4). Each manifest agrees with
        itself and the files are there in their sizes. The caller hashes each file that it takes.
        """
        return self.find_earlier(changes, besides)

    def count(self, **counts: Any) -> None:
        """Record numbers of the result: the same inputs give the same counts."""
        self.counts.update(counts)

    def fact(self, **facts: Any) -> None:
        """Record measurements of this run: speeds, seconds, memory."""
        self.facts.update(facts)

    def table(self, title: str, rows: Sequence[Row]) -> None:
        """A table for people, shown in the Prefect UI on every run, cached or not."""
        self.counts.setdefault("tables", {})[title] = [dict(row) for row in rows]

    def fact_table(self, title: str, rows: Sequence[Row]) -> None:
        """As `table`, of facts, which may differ in another run of the same."""
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
        quarantined. `section` has the thresholds, if it isn't the stage's own. `may_be_none` accepts a result of which
        nothing is kept. Raises AccountingError if the sum is wrong, EmptyOutput if nothing is kept."""
        total = kept + sum(removed.values()) + quarantined
        if total != documents_in:
            raise AccountingError(
                f"{self.stage} read {documents_in:,} {what} and accounts for {total:,} "
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
            counted = ", ".join(f"{reason} {count:,}" for reason, count in sorted(removed.items()))
            raise EmptyOutput(
                f"{self.stage} kept none of {documents_in:,} {what} (removed: {counted or 'none'}).",
                f"Loosen the thresholds under `{section or self.stage}:`, or check the source.",
            )

    def progress(self, done: float, total: float, unit: str, note: str = "") -> None:
        """Report to the observer how far the stage is."""
        self.observer.progressed(Progress(self.stage, done, total, unit, note))

    def page(self, name: str, write: Callable[[], str], *, last: bool = False) -> None:
        """Show a page of Markdown that changes while the stage works, such as a curve. `write` is called only if
        somebody watches, and not every time. `last` says that the page won't change any more."""
        self.observer.paged(self.stage, name, write, last=last)

    def note(self, message: str) -> None:
        """Report something worth a line to the observer."""
        self.observer.noted(self.stage, message)

    def warn(self, message: str) -> None:
        """As `note`, for what is or may be wrong: damage, a retry, a result smaller than requested."""
        self.observer.warned(self.stage, message)

    def obtain(self, stage: ObtainableStage, config: StageConfig, *inputs: Input, name: str | None = None) -> Artifact:
        """An intermediate artifact that this stage needs (signals, sketches), cached by its own key.

        Within a session it comes from the store. In a plain call it is made in the scratch folder. A caller that
        obtains several of one stage gives each a `name`, which the observer shows.
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
        """As `obtain` for calls by name. Those that are missing are made together."""
        if current() is not None:
            with told_as(stage.name, stage.name, self.stage):
                made = dict(zip(calls, stage.obtained_all([*calls.values()]), strict=True))
            self.uses |= {f"{stage.name}.{name}": artifact.origin for name, artifact in made.items()}
            return made
        assert stage.together is not None, f"{stage.name} makes one artifact at a time"
        outs = {  # named by key, as other calls of this stage may follow
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
                raise EmptyOutput(f"{self.stage} counted {name} = {value}.", "Check the stage's inputs and log.")


def _numbers(value: Any, name: str = "") -> list[tuple[str, float]]:
    if isinstance(value, Mapping):
        return [pair for key, item in value.items() for pair in _numbers(item, f"{name}.{key}".lstrip("."))]
    if isinstance(value, list | tuple):
        return [pair for item in value for pair in _numbers(item, name)]
    return [(name, value)] if isinstance(value, float) else []
