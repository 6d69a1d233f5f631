"""The measuring half: obtains the signals of each family, those measured last only for the documents that need them."""

from __future__ import annotations

from collections.abc import Iterable

from storage.artifact import Artifact
from tasks.filter.config import FilterConfig
from tasks.filter.families import families_of, first_and_last
from tasks.filter.family import PASSED, Family
from tasks.filter.first_pass.stage import passed
from tasks.stage.config import StageConfig
from tasks.stage.output import Output


def measure(config: FilterConfig, documents: Artifact, benchmarks: Artifact, out: Output) -> dict[str, Artifact]:
    """Obtain the signals of every family that has a rule, by the family's name, and tabulate the models' figures.

    If some families are measured last, the result includes `passed`, which marks the documents that they measure.
    """
    measured: dict[str, Artifact] = {}
    models: dict[str, Artifact] = {}

    def obtain(families: Iterable[Family]) -> None:
        marks = measured.get(PASSED)
        for family in families:
            model, signals = family.measure(config, documents, benchmarks, marks, out)
            measured.update({family.name: signals} if signals is not None else {})
            models.update({family.name: model} if model is not None else {})

    first, last = first_and_last(config)
    obtain(first)
    if last:
        measured[PASSED] = out.obtain(passed, _read_by(first, config), documents, dict(measured))
    obtain(last)
    _tabulate(models, out)
    return measured


def parts(config: FilterConfig) -> dict[str, StageConfig]:
    """The config of each part that the filter obtains, by name."""
    configs: dict[str, StageConfig] = {"repair": config.repair} if config.repair else {}
    for family in families_of(config):
        configs |= family.parts(config)
    first, last = first_and_last(config)
    return {**configs, **({PASSED: _read_by(first, config)} if last else {})}


def _read_by(first: Iterable[Family], config: FilterConfig) -> FilterConfig:
    """The config with defaults for all fields that these families don't read, so that the key of `passed` holds only
    what decides."""
    read = {"measured_last", *(field for family in first for field in family.fields)}
    fields = type(config).model_fields
    others = {name: field.get_default(call_default_factory=True) for name, field in fields.items() if name not in read}
    return config.model_copy(update=others)


def _tabulate(models: dict[str, Artifact], out: Output) -> None:
    figures = [
        {"model": family, "figure": name.replace("_", " "), "value": value}
        for family, model in models.items()
        for name, value in (model.manifest.counts if model.manifest is not None else {}).items()
        if isinstance(value, int | float)
    ]
    if figures:
        out.table("Models", figures)
