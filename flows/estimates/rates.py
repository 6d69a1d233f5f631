"""Laws corrected by measurements: of the same stage if it had similar work, otherwise of all stages on this machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from flows.estimates.laws import GFLOP, LAWS, Law, Work
from flows.estimates.parts import own_seconds, parts_of, seconds_of
from flows.estimates.stage_inputs import Made
from flows.estimates.work import work_of
from storage.manifest import Manifest
from tasks.stage.decorator import STAGES
from tasks.stage.environment import environment

TOO_MUCH_REUSED = 0.5  # of an artifact's inputs: with more, its seconds say nothing
ALIKE = 0.95  # the ratio from which two amounts of work count as the same
LEAST = 0.2  # seconds: shorter ones say nothing about the machine
USUAL, MEASURED = "usual rates", "this machine's rates"


class Measured(NamedTuple):
    """A stage that was made here: the law's seconds for its work, and the seconds that it took."""

    manifest: Manifest
    law: float  # seconds
    took: float


class Expectation(NamedTuple):
    """Expected seconds, the fixed part of them, and their source."""

    seconds: float
    fixed: float
    source: str


class Rates:
    """The rates of the planning machine. `flops` are those that training's GPUs execute a second, or None for a CPU.

    GPUs that this machine doesn't have (`elsewhere`) go only by their data sheets.
    """

    def __init__(
        self, manifests: Mapping[str, Manifest], workers: int, flops: float | None = None, *, elsewhere: bool = False
    ) -> None:
        self._manifests, self._workers, self._flops = manifests, workers, flops
        made, here = Made(manifests), environment()
        self._measured: dict[str, list[Measured]] = defaultdict(list)
        for location, manifest in manifests.items():
            comparable = self._is_comparable(manifest, here, elsewhere=elsewhere)
            self._measured[manifest.stage] += (
                [one] if comparable and (one := self._of(made, location, manifest)) else []
            )
        self._machine = self._median()

    def expect(self, stage: str, work: Work) -> Expectation:
        """The time of a stage with a law for this work."""
        law = self.law(stage).seconds(work, self._workers)
        own = max(self._measured[stage], key=lambda one: (_alike(one.law, law), one.manifest.created), default=None)
        machine = None if self._flops and _trains(stage) else self._machine  # which is that of its CPU
        ratio, source = (machine, MEASURED) if machine else (1.0, USUAL)
        if own is not None:
            weight = _alike(own.law, law)
            ratio = ratio ** (1 - weight) * (own.took / own.law) ** weight
            source = f"{own.manifest.stage}/{own.manifest.key[:8]}" if weight > ALIKE else source
        return Expectation(ratio * law, ratio * self.law(stage).fixed, source)

    def law(self, stage: str) -> Law:
        """The law of a stage on the devices that it will run on."""
        return LAWS[stage].on_gpu(self._flops) if self._flops and _trains(stage) else LAWS[stage]

    def _is_comparable(self, made: Manifest, here: Mapping[str, str], *, elsewhere: bool) -> bool:
        """Whether an artifact shows how fast its stage will be on these devices."""
        made_on = made.environment
        if made.stage not in LAWS or made_on.get("cpu") != here["cpu"]:
            return False
        if not _trains(made.stage):
            return True
        on_gpu = self._device(made) == "cuda"
        return on_gpu == bool(self._flops) and (not on_gpu or (made_on.get("gpu") == here["gpu"] and not elsewhere))

    def _device(self, made: Manifest) -> str:
        devices = (one.facts.get("device") for one in (made, *parts_of(self._manifests, made).values()))
        return next((str(device) for device in devices if device), "cpu")

    def _of(self, made: Made, location: str, manifest: Manifest) -> Measured | None:
        parts = parts_of(self._manifests, manifest)
        reused = max(float(one.facts.get("share_reused", 0)) for one in (manifest, *parts.values()))
        work = work_of(manifest.stage, manifest.payload.config, made.seen_by(manifest, location))
        if work is None or reused > TOO_MUCH_REUSED:
            return None
        looks_up = STAGES[manifest.stage].parts is not None
        took = own_seconds(manifest, parts.values()) if looks_up else seconds_of(manifest)
        return Measured(manifest, self.law(manifest.stage).seconds(work, self._workers), took) if took else None

    def _median(self) -> float | None:
        """This machine's time as a multiple of the laws': the median, weighted by time, of each stage's last making."""
        known = [every for name, every in self._measured.items() if every and not (self._flops and _trains(name))]
        last = [max(every, key=lambda one: one.manifest.created) for every in known]
        ratios = sorted((one.took / one.law, one.took) for one in last if one.took >= LEAST)
        half = sum(took for _, took in ratios) / 2
        for ratio, took in ratios:
            half -= took
            if half <= 0:
                return ratio
        return None


def _trains(stage: str) -> bool:
    return GFLOP in LAWS[stage].each


def _alike(one: float, other: float) -> float:
    return min(one, other) / max(one, other, 1e-9)
