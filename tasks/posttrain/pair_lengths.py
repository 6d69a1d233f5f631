"""Whether the pairs of a profile fit its model: asked before the pretraining, by the code that post-training uses.

What a pair becomes depends on the tokenizer and the chat template alone. So a context into which too few pairs fit is
told as soon as there is a tokenizer, and not after a base model was paid for.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.pretrained import context_of, load_config
from models.tokenizer import load_tokenizer
from storage.artifact import Artifact
from tasks.posttrain.check import check_room, max_length_of
from tasks.posttrain.config import PosttrainConfig
from tasks.posttrain.method import Method
from tasks.posttrain.rows.duplicates import drop_duplicates, split_rows
from tasks.posttrain.rows.form import Row
from tasks.posttrain.rows.prepare import prepare, read_rows, warning_of
from tasks.stage.output import Output
from tasks.stage.session import current

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def rendered(
    method: Method[Any],
    config: PosttrainConfig,
    files: Sequence[Path],
    tokenizer: PreTrainedTokenizerFast,
    max_length: int,
    split: Counter[str] | None = None,
) -> tuple[list[Row], list[Row], Counter[str]]:
    """The rows of a method to train on and to hold out, and the number dropped by reason; `split` counts those that
    became several.

    Raises EmptyOutput if more than `max_dropped_share` can't be used, ConfigError where an answer has no room, and what
    the method raises for the rows as a whole.
    """
    check_room(method.name, config, max_length)
    form = method.form(config)
    train, held_out, dropped = prepare(
        read_rows(files),
        lambda row, length: form.render(row, tokenizer, length - config.generated_tokens),
        max_length,
        validation_share=config.validation_share,
        max_dropped_share=config.max_dropped_share,
        what=method.pairs,
        split=split,
    )
    if method.check_rows is not None:
        method.check_rows(config, train, held_out)
    return train, held_out, dropped


def check_pairs(
    methods: Mapping[str, PosttrainConfig], pairs: Artifact, tokenizer: Artifact, context: int | None = None
) -> None:
    """Raises what the stages would raise: EmptyOutput if too few pairs can be used in a model of this context,
    ConfigError for a `max_length` beyond it or rewards that no answer can earn. Warns where many can't be used.

    Without a `context`, `tokenizer` is the folder of a model, which has one.
    """
    from tasks.posttrain.methods import METHODS

    if context is None:
        context = context_of(load_config(tokenizer.path))
    loaded, session = load_tokenizer(tokenizer.path), current()
    for name, config in methods.items():
        method = METHODS[name]
        max_length = max_length_of(name, config, context)
        with tempfile.TemporaryDirectory() as folder:
            out = Output.at(Path(folder), stage=name)
            part = method.reads(pairs.folders("*"))
            given = split_rows(pairs.part(part).files("*.jsonl"), method.rows, out)
            files, _ = drop_duplicates(given, config.deduplicate, out)
            train, held_out, dropped = rendered(method, config, files, loaded, max_length)
            warning = warning_of(dropped, len(train) + len(held_out) + dropped.total(), max_length)
            if warning and session:
                session.observer.warned(name, warning)
