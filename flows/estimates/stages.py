"""How long a stage will take: as long as it took before, scaled by what drives its work, and from where that is known.

A stage has a fixed part (processes start, libraries are imported) and one that grows: see work.py. Parts of a stage
that are in the store cost nothing: see parts.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from flows.estimates.parts import parts_of
from flows.estimates.planned import PlannedStage
from flows.estimates.work import Growth, Training, growth, text_out
from storage.manifest import Manifest
from storage.runs.record import Estimate
from storage.store import CHECKPOINTS, Store
from tasks.stage.decorator import STAGES
from tasks.training.checkpoint_marker import complete_checkpoints

SAME = 0.05  # of a ratio: from there on a stage is said to be scaled
ARITHMETIC = "arithmetic"
WITHOUT_START = f"{ARITHMETIC} without start"  # of processes and compilation, which no run has measured


def estimates(store: Store, lines: Iterable[PlannedStage], training: Training | None) -> dict[str, Estimate]:
    """Of each stage that must be made and of which anything is known, how long it will take."""
    found, read = {}, dict[str, float]()  # bytes of text that come out of a stage
    for line in lines:
        grown = Growth()
        if line.manifest is not None:
            grown = growth(store, line, line.manifest, training, read) if not line.hit else grown
            read[line.name] = text_out(line, line.manifest, grown)
        if line.hit:
            continue
        estimate = _estimate(store, line, training, grown)
        if estimate:
            found[line.name] = estimate
    return found


def resumes_at(store: Store, line: PlannedStage) -> int:
    """The step of the newest whole checkpoint from which a stage goes on, on this machine or in the bucket; else 0."""
    if line.hit or line.payload is None or "training" not in STAGES[line.name].runtime:
        return 0
    key = line.payload.key()
    steps = [*complete_checkpoints(store.local / "work" / f"{line.name}-{key}" / "scratch" / "checkpoints")]
    if not store.is_folder:
        names = store.sizes(f"{CHECKPOINTS}/{line.name}/{key}")
        whole = [name.split("/")[0].split("-") for name in names if name.endswith("/remote.json")]
        steps += [int(parts[1]) for parts in whole if len(parts) > 1 and parts[1].isdigit()]
    return max(steps, default=0)


def _estimate(store: Store, line: PlannedStage, training: Training | None, grown: Growth) -> Estimate | None:
    earlier = line.manifest
    resumed = resumes_at(store, line) if line.name == "pretrain" and training else 0
    left = max(0.0, 1 - resumed / training.steps) if training else 1.0
    rest = f", from step {resumed:,} of {training.steps:,}" if training and resumed else ""
    if earlier is None or not float(earlier.facts.get("seconds", 0)):  # an adopted one took no time
        if line.name == "pretrain" and training and training.seconds is not None:
            return _by_arithmetic(store, training.seconds * left, rest)
        return None
    parts = parts_of(store, line, earlier, grown.ratio)
    more = f", without {', '.join(parts.unknown)}, which no run has measured" if parts.unknown else ""
    seconds = parts.own + sum(parts.missing.values())
    if parts.any_there:
        anew = f", {', '.join(parts.missing)} anew" if parts.missing else ""
        others = "its other parts" if parts.missing or parts.unknown else "its parts"
        return Estimate(seconds=seconds, source=f"{_named(earlier)}{anew}, {others} from the store{more}")
    fixed = min(grown.fixed, seconds)
    scaled = fixed + (seconds - fixed) * grown.ratio * left
    times = f"scaled ×{grown.ratio:,.3g} by {grown.by} from "
    return Estimate(seconds=scaled, source=times * (abs(grown.ratio - 1) > SAME) + _named(earlier) + rest + more)


def _by_arithmetic(store: Store, seconds: float, rest: str) -> Estimate:
    """A training that no run has done; another training in the store tells how long one takes to start."""
    starts = [
        (manifest.created, max(0.0, float(facts["seconds"]) - killed - float(facts["training_seconds"])), manifest)
        for name, stage in STAGES.items()
        if "training" in stage.runtime
        for _, manifest in store.manifests(name)
        if "training_seconds" in (facts := manifest.facts) and "seconds" in facts
        for killed in [float(facts.get("earlier_seconds", 0))]
    ]
    if not starts:
        return Estimate(seconds=seconds, source=WITHOUT_START + rest)
    _, start, like = max(starts, key=lambda each: each[0])
    return Estimate(seconds=start + seconds, source=f"{ARITHMETIC}, with the start of {_named(like)}{rest}")


def _named(manifest: Manifest) -> str:
    return f"{manifest.stage}/{manifest.key[:8]}"
