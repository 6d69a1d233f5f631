"""The stage that takes the files of a classifier, once for all its signals and corpora."""

from __future__ import annotations

from tasks.base.config import BaseConfig
from tasks.base.source import fingerprint
from tasks.stage import stage
from tasks.stage.output import Output


@stage(version=1, part_of="filter", runtime=("compute",), sources=fingerprint)
def classifier(config: BaseConfig, out: Output) -> None:
    """Take a transformers sequence classifier: its config, its weights and its tokenizer, byte for byte.

    Raises SourceError for code, pickles, quantized weights, a missing head, and weights that are NaN or infinite.
    """
    from tasks.filter.classifier.source import check_classifier, take_files

    known = take_files(config, check_classifier, out)
    labels = [str(label) for label in known.id2label.values()]
    out.count(labels=labels, summary=f"{config.named}, {known.model_type}, {len(labels)} outputs")
