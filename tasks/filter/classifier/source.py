"""The files of a classifier: identified by their digests, and refused if they are code, pickles or half a model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from models.non_finite import not_finite
from models.pretrained import load_classifier, load_config
from storage.errors import ConfigError, SourceError
from tasks.base.check import check_format, loaded, quietly
from tasks.base.config import BaseConfig
from tasks.base.source import fetch, files_of, fingerprint
from tasks.base.tokenizer import check_ids, open_tokenizer
from tasks.checks.extras import need
from tasks.children.devices import check_device_here
from tasks.filter.classifier.config import ClassifierConfig
from tasks.filter.fasttext_model.labelled import digests
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime

SAFE = "Save it as AutoModelForSequenceClassification.from_pretrained(…).save_pretrained(…) does, with its tokenizer."
VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model")
Load = Callable[..., Any]
UNLIMITED = 1_000_000  # tokens: transformers marks a tokenizer without a limit by a larger number


def source_of(config: ClassifierConfig) -> BaseConfig:
    """The source of the files, in the form of a pretrained model's config."""
    return BaseConfig(folder=config.folder, repository=config.repository, revision=config.revision)


def fingerprints(config: ClassifierConfig) -> dict[str, str]:
    """Digests of the classifier's files, or its revision, and of the labelled files. Raises SourceError."""
    if config.folder is not None and not (folder := Path(config.folder).expanduser()).is_dir():
        raise SourceError(f"The classifier's folder {folder} does not exist.", "Check the path under `filter`.")
    files = {name.replace("base/", "classifier/", 1): one for name, one in fingerprint(source_of(config)).items()}
    return files | digests(config.labelled, "filter")


def check_here(section: Any, runtime: Runtime) -> None:
    """Raise a GristmillError if a family's section needs a classifier, or a GPU for it, that is missing here."""
    if section is not None and isinstance(section.measure.model, ClassifierConfig):
        need("models", "A classifier of transformers in the filter")
        fingerprints(section.measure.model)
        check_device_here(runtime)


def take_files(config: BaseConfig, check: Callable[[Path], Any], out: Output) -> Any:
    """Copy the files of a model that `check` accepts, and return the result of `check`. Raises SourceError."""
    out.progress(0, 1, "models", "reading")
    folder = fetch(config, out.scratch)
    known = check(folder)
    for path in files_of(folder):
        shutil.copyfile(path, out.path / path.name)
    return known


def check_classifier(folder: Path) -> Any:
    """The config of a classifier that transformers can build from only these files. Raises SourceError for any other,
    including one without its head, for which transformers would draw random numbers."""
    return check_saved(folder, "classifier", load_classifier, SAFE)


def check_saved(folder: Path, what: str, load: Load, remedy: str, unneeded: str = "") -> Any:
    """The config of a saved model, `what` in messages. Raises SourceError unless its weights are complete, except those
    that begin with `unneeded`, and finite, and its own tokenizer fits it."""
    known = check_format(folder, what, remedy)
    with quietly():
        options = {"device_map": "meta", "output_loading_info": True, "ignore_mismatched_sizes": True}
        _, report = loaded(lambda: load(folder, **options), f"the {what}", remedy)
    for fault in ("missing", "mismatched"):
        names = sorted(str(name[0] if isinstance(name, tuple) else name) for name in report.get(f"{fault}_keys", ()))
        names = [name for name in names if not unneeded or not name.startswith(unneeded)]
        if names:
            raise SourceError(
                f"{folder.name} is not a trained {what}: {fault} are {', '.join(names[:3])}.",
                "Use a model that was saved whole: a classifier with its classification head.",
            )
    if problem := not_finite(folder):
        raise SourceError(f"The {what} is unusable: {problem}.", "Get it again, or choose another.")
    # Without one, transformers makes an empty vocabulary, to which every word is unknown
    if not any((folder / name).is_file() for name in VOCABULARIES):
        raise SourceError(f"{folder.name} lacks a tokenizer.", f"Save the {what} with its tokenizer.json.")
    tokenizer = load_tokenizer(folder, what)
    check_ids(tokenizer, folder, tokenizer, what)
    tokens, rows = len(tokenizer), getattr(known, "vocab_size", None)
    if rows is not None and tokens > rows:
        raise SourceError(
            f"The tokenizer of {folder.name} has {tokens:,} tokens, but its model {rows:,}.",
            "Save the model after `resize_token_embeddings`, or with the tokenizer that it was trained with.",
        )
    return known


def load_tokenizer(folder: Path, what: str = "classifier") -> Any:
    """The tokenizer of a model, `what` in messages. Raises SourceError if it can't give its tokens' offsets, or can't
    pad."""
    tokenizer = open_tokenizer(folder, what, SAFE)
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise SourceError(f"The {what}'s tokenizer lacks a pad_token.", "Name it in its tokenizer_config.json.")
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    return tokenizer


def check_score(config: ClassifierConfig, folder: Path) -> None:
    """Raise ConfigError if the model can't give the configured score."""
    known = load_config(folder)
    labels = list(known.id2label.values())
    shown = ", ".join(map(str, labels))
    if config.output == "probability":
        if config.label not in labels:
            raise ConfigError(f"{config.named} lacks the label {config.label}.", f"Choose one of its labels: {shown}.")
        if known.problem_type == "regression":
            raise ConfigError(f"{config.named} is a regression.", "Set output: value, and leave label out.")
    if config.output == "value" and len(labels) != 1:
        raise ConfigError(
            f"{config.named} has {len(labels)} outputs, but output: value needs one.",
            f"Set output: expected, or name one of its labels: {shown}.",
        )
    if config.output == "expected" and len(labels) < 2:
        raise ConfigError(f"{config.named} has one output, but output: expected needs several.", "Set output: value.")
    longest(config.max_tokens, config.named, known, load_tokenizer(folder))


def sigmoid_of(config: ClassifierConfig, known: Any) -> bool:
    """Whether the outputs become probabilities one by one, as in transformers' own pipeline."""
    if config.activation == "auto":
        return bool(known.problem_type == "multi_label_classification" or len(known.id2label) == 1)
    return config.activation == "sigmoid"


def longest(max_tokens: int | None, named: str, known: Any, tokenizer: Any) -> int:
    """The maximum tokens of a piece, including those that the tokenizer adds. Raises ConfigError if that is more than
    the model can read, or if neither says how many."""
    positions = getattr(known, "max_position_embeddings", None)
    limits = [int(tokenizer.model_max_length)] if tokenizer.model_max_length < UNLIMITED else []
    if isinstance(positions, int):
        # RoBERTa and similar models number positions from after that of padding
        offset = "roberta" in known.model_type or known.model_type in ("camembert", "longformer", "mpnet")
        limits.append(positions - (known.pad_token_id + 1 if offset else 0))
    if max_tokens is None and not limits:
        raise ConfigError(f"{named} does not say how long a text may be.", "Set max_tokens.")
    if max_tokens is not None and limits and max_tokens > min(limits):
        raise ConfigError(f"max_tokens is {max_tokens}, but {named} can read {min(limits)}.", "Lower max_tokens.")
    limit = max_tokens or min(limits)
    if limit <= tokenizer.num_special_tokens_to_add():
        raise ConfigError(f"{named} can read {limit} tokens, which leaves none for text.", "Choose another.")
    return limit
