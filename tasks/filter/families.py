"""The families of signals that a config asks for, each an artifact of its own: adding one measures only that one."""

from __future__ import annotations

from storage.artifact import Artifact
from tasks.filter.config import FilterConfig
from tasks.filter.contamination.stage import contamination_signals
from tasks.filter.form.stage import form_signals
from tasks.filter.language.stage import language_signals
from tasks.filter.perplexity.stage import perplexity_model, perplexity_signals
from tasks.filter.pii.stage import pii_signals
from tasks.filter.quality.stage import quality_model, quality_signals
from tasks.filter.toxicity.stage import toxicity_model, toxicity_signals
from tasks.stage.output import Output


def measure(config: FilterConfig, documents: Artifact, benchmarks: Artifact, out: Output) -> dict[str, Artifact]:
    """The artifact of every family that has a rule, by the family's name."""
    measured = {
        "form": out.obtain(form_signals, config.form, documents),
        "language": out.obtain(language_signals, config.language.measure, documents),
        "pii": out.obtain(pii_signals, config.pii.measure, documents),
        "contamination": out.obtain(contamination_signals, config.contamination.measure, documents, benchmarks),
    }
    if config.toxicity is not None:
        model = out.obtain(toxicity_model, config.toxicity.measure.model, documents)
        measured["toxicity"] = out.obtain(toxicity_signals, config.toxicity.measure, documents, model)
    if config.quality is not None:
        model = out.obtain(quality_model, config.quality.measure.model, documents)
        measured["quality"] = out.obtain(quality_signals, config.quality.measure, documents, model)
    if config.perplexity is not None:
        model = out.obtain(perplexity_model, config.perplexity.measure.model, documents)
        measured["perplexity"] = out.obtain(perplexity_signals, config.perplexity.measure, documents, model)
    return measured
