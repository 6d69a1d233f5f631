"""Checks before the pretraining that a profile's pairs fit its model, with the code that post-training uses.

The tokens of a pair depend only on the tokenizer and the chat template. So a context that is too short for the pairs
fails as soon as the tokenizer exists, not after an expensive pretraining.
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
from tasks.posttrain.config import PosttrainConfig, check_room, max_length_of
from tasks.posttrain.method import Method
from tasks.posttrain.rows.duplicates import drop_duplicates, split_rows
from tasks.posttrain.rows.form import Row
from tasks.posttrain.rows.prepare import prepare, read_rows, warning_of
from tasks.stage.output import Output
from tasks.stage.session import current

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def render_rows(
    method: Method[Any],
    config: PosttrainConfig,
    files: Sequence[Path],
    tokenizer: PreTrainedTokenizerFast,
    max_length: int,
    split: Counter[str] | None = None,
) -> tuple[list[Row], list[Row], Counter[str]]:
    """The rows of a method to train on and to hold out, and the number dropped by reason. `split` counts those that
    were split into several.

    Raises EmptyOutput if more than `max_dropped_share` can't be used, ConfigError if no room is left for an answer, and
    what the method's `check_rows` raises.
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
    ConfigError for a `max_length` beyond it or rewards that no answer can earn. Warns if many can't be used.

    Without a `context`, `tokenizer` must be the folder of a model, whose context is then taken.
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
            split_files = split_rows(pairs.part(part).files("*.jsonl"), method.rows, out)
            files, _ = drop_duplicates(split_files, config.deduplicate, out)
            train, held_out, dropped = render_rows(method, config, files, loaded, max_length)
            warning = warning_of(dropped, len(train) + len(held_out) + dropped.total(), max_length)
            if warning and session:
                session.observer.warned(name, warning)
