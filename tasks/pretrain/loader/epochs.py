"""How often a training reads the windows of each source, and the most that the profile allows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from storage.errors import ConfigError
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.loader.mixture import MixtureOrder, Phase
from tasks.pretrain.loader.windows import ALL


class Reading(NamedTuple):
    """The windows of a source, and how many samples of a run are read from it."""

    source: str
    windows: int
    samples: int

    @property
    def epochs(self) -> float:
        """How often each window is read."""
        return self.samples / self.windows if self.windows else float(self.samples > 0)


def phases_of(config: PretrainConfig) -> list[Phase]:
    """The mixture and its changes, by the samples that they begin with. Empty for natural proportions."""
    if config.mixture is None:
        return []
    later = ((change.from_step, change.mixture) for change in config.curriculum)
    return [Phase(config.samples(step - 1), mixture) for step, mixture in ((1, config.mixture), *later)]


def planned(config: PretrainConfig, steps: int, context: int, tokens: Mapping[str, int]) -> list[Reading]:
    """The readings of a run of `steps` steps, by the training tokens of each source. With packed documents they are
    about right, else exact. Raises ConfigError for a weight too small."""
    samples, phases = config.samples(steps), phases_of(config)
    if not phases:
        return [Reading(ALL, max(0, sum(tokens.values()) - 1) // context, samples)]
    weighed = {source for phase in phases for source in phase.weights}
    sources = [source for source in tokens if source in weighed]
    served = MixtureOrder(phases, sources, seed=config.seed).served(samples).tolist()
    return [
        Reading(source, max(0, tokens[source] - 1) // context, count)
        for source, count in zip(sources, served, strict=True)
    ]


def check_epochs(config: PretrainConfig, readings: Iterable[Reading]) -> None:
    """Raises ConfigError for a source that would be read more often than `max_epochs` allows."""
    for reading in readings:
        allowed = config.epochs_allowed(reading.source)
        if allowed is not None and reading.epochs > allowed:
            name = "the text" if reading.source == ALL else reading.source
            less = "Train on fewer tokens" if reading.source == ALL else "Lower its weight, train on fewer tokens"
            raise ConfigError(
                f"pretrain would read {name} {reading.epochs:.2f} times, but pretrain.max_epochs allows {allowed:g}.",
                f"{less}, add documents, or raise max_epochs.",
            )


def repeats(readings: Iterable[Reading]) -> Iterator[str]:
    """A sentence for sources that are read more than once."""
    again = {reading.source: reading.epochs for reading in readings if reading.epochs > 1}
    if ALL in again:
        yield f"pretrain reads the text {again[ALL]:.2f} times."
    elif again:
        yield f"pretrain reads {', '.join(f'{source} {epochs:.2f} times' for source, epochs in again.items())}."
