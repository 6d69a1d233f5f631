"""The evaluation of a trained model on documents composed of held-out texts, since labels are for posts, not documents.

A document has eight texts. Three to eight are toxic in a toxic document, none in a clean one. The texts are drawn by
hash, with replacement. The precision is for data in which a share `base_rate` of the documents is toxic.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tasks.filter.fasttext_model.calibration import area_under_curve, threshold_for, threshold_table
from tasks.filter.fasttext_model.labelled import Example
from tasks.filter.fasttext_model.sample import draw
from tasks.filter.fasttext_model.scorer import load_scorer
from tasks.filter.toxicity.config import TrainedModelConfig
from tasks.filter.toxicity.measure import score_documents
from tasks.stage.output import Output

DOCUMENTS = 1000  # of each class
TEXTS = 8  # per document
TOXIC = (3, 4, 6, 8)  # of them, in turns


def report_documents(config: TrainedModelConfig, tested: Sequence[Example], out: Output) -> None:
    """Count the area under the curve over such documents, and the lowest `max_score` that reaches the target precision.
    Tabulate precision and recall by threshold."""
    texts = [*make_documents(tested, TOXIC), *make_documents(tested, (0,))]
    positive = np.arange(len(texts)) < DOCUMENTS
    load_scorer.cache_clear()  # the same working folder may have held an earlier model
    scores, _, _ = score_documents(load_scorer(out.path), pa.array(texts, pa.string()), config.piece_bytes)
    threshold = threshold_for(scores, positive, config.base_rate, config.target_precision)
    out.count(document_auc=round(area_under_curve(scores, positive), 4))
    if threshold is None:
        out.warn(f"no max_score reaches a precision of {config.target_precision:g} on held-out documents")
    else:
        out.count(max_score_for_target_precision=round(threshold, 4))
    out.table("Documents: threshold and expected precision", threshold_table(scores, positive, config.base_rate))


def make_documents(tested: Sequence[Example], toxic: Sequence[int]) -> list[str]:
    """Compose documents with these numbers of toxic texts, in turns."""
    sides = {side: [example.text for example in tested if example.positive == side] for side in (True, False)}
    documents = []
    for number in range(DOCUMENTS):
        parts = [
            _pick(sides[place < toxic[number % len(toxic)]], f"{toxic}/{number}/{place}") for place in range(TEXTS)
        ]
        order = sorted(range(TEXTS), key=lambda place: draw(f"{number}/{place}", "order"))
        documents.append("\n\n".join(parts[place] for place in order))
    return documents


def _pick(texts: Sequence[str], name: str) -> str:
    return texts[int(draw(name, "held-out document") * len(texts))]
