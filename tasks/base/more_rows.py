"""A base with rows for further tokens, in its embedding and in its output layer: each the mean of the rows of the
tokens that the new one joins. So a new token begins as what it stood for before.

New ids follow the tokenizer's last. Many matrices have rows beyond it that no text ever used, and these are taken
first. Only then the matrix grows, to a multiple of 64: rows of 16 bits then begin at multiples of 128 bytes, which
matrix units read fastest, and up to 64 devices can share them evenly. Rows beyond the new tokens get the mean of all
rows that were in use, so that their logits are ordinary (Hewitt 2021, "Initializing New Word Embeddings for Pretrained
Language Models"): where all logits are far below zero, as GPT-2's, rows of zeros would take nearly all probability.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from models.pretrained import INDEX, empty_model, load_config, stored_tensors, weight_files
from models.tokenizer import DIGEST_FIELD, NotExtendedError, copy_tokenizer, new_tokens, tokenizer_digest
from storage.errors import SourceError, TokenizerMismatch

MULTIPLE = 64  # of rows, where a matrix grows
VOCABULARY = "vocab_size"


def add_rows(base: Path, tokenizer: Path, folder: Path) -> None:
    """Write a base to `folder` with rows for the further tokens of `tokenizer`, and with that tokenizer. Embedding and
    output layer are stored in float32, as means would be rounded. Files without them are links.

    Raises TokenizerMismatch if the tokenizer doesn't extend the base's, and SourceError as `check_rows` does.
    """
    try:
        pieces = new_tokens(base, tokenizer)
    except NotExtendedError as error:
        raise TokenizerMismatch(
            f"The tokenizer can't be trained with this base: {error}.", "Run from the stage `tokenizer` on."
        ) from error
    ends = check_rows(base)
    first, last = min(pieces), max(pieces)
    rows = rows_of(base, last + 1)
    draft = folder.with_suffix(".draft")
    for old in (draft, folder):
        shutil.rmtree(old, ignore_errors=True)
    draft.mkdir(parents=True)
    copy_tokenizer(tokenizer, draft)
    for name in ("generation_config.json", INDEX):
        if (base / name).is_file():
            shutil.copyfile(base / name, draft / name)
    settings = json.loads((base / "config.json").read_text(encoding="utf-8"))
    holder = settings if VOCABULARY in settings else settings["text_config"]
    holder[VOCABULARY] = rows
    settings[DIGEST_FIELD] = tokenizer_digest(tokenizer)
    (draft / "config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    for file in weight_files(base):
        _write_weights(file, draft / file.name, ends, rows, first, pieces)
    draft.rename(folder)


def rows_of(base: Path, ids: int) -> int:
    """The rows of a base's embedding for a tokenizer of `ids` ids: as many as it has, or more if it must."""
    rows = int(load_config(base).get_text_config().vocab_size)
    return rows if ids <= rows else -(-ids // MULTIPLE) * MULTIPLE


def check_rows(base: Path) -> list[str]:
    """The tensors of a base with a row for each token: its embedding, and if it isn't tied to that, its output layer
    with its bias. Raises SourceError for a base with others, or that stores these under other names."""
    import torch
    from transformers import AutoModelForCausalLM

    model = empty_model(base)
    config = deepcopy(load_config(base))
    config.get_text_config().vocab_size += MULTIPLE
    with torch.device("meta"):
        wider: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    sizes = {name: value.shape for name, value in wider.state_dict().items()}
    changed = {name for name, value in model.state_dict().items() if sizes.get(name) != value.shape}
    parts = [part for part in (model.get_input_embeddings(), model.get_output_embeddings()) if part is not None]
    known = [parameter for part in parts for parameter in part.parameters()]
    parameters = dict(model.named_parameters(remove_duplicate=False))
    ends = {name for name, value in parameters.items() if any(value is one for one in known)}
    stored = sorted(ends & stored_tensors(base).keys())
    embedding = {name for name, value in parameters.items() if value is parts[0].weight}
    if changed != ends or not embedding & set(stored):
        other = sorted(changed ^ ends) or sorted(embedding)
        raise SourceError(
            f"The base can't get new tokens: {other[0]} isn't a row for each token in its files.",
            "Leave out tokenizer.extend, or choose another base.",
        )
    return stored


def _write_weights(
    file: Path, target: Path, ends: Sequence[str], rows: int, first: int, pieces: Mapping[int, Sequence[int]]
) -> None:
    """Write a file of weights with the rows that it needs, or link it if it has none of `ends`."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    changed = [name for name in ends if name in tensors]
    if not changed:
        target.symlink_to(file.resolve())
        return
    for name in changed:
        tensors[name] = _with_rows(tensors[name], rows, first, pieces)
    save_file(tensors, target, {"format": "pt"})


def _with_rows(stored: Any, rows: int, first: int, pieces: Mapping[int, Sequence[int]]) -> Any:
    """A tensor with `rows` rows in float32. Ids below `first` were in use before."""
    import torch

    old = stored.float().numpy()
    new = np.empty((rows, *old.shape[1:]), np.float32)
    new[: len(old)] = old
    new[len(old) :] = old[:first].mean(0, dtype=np.float64)
    for id, parts in pieces.items():
        new[id] = old[list(parts)].mean(0, dtype=np.float64)
    return torch.from_numpy(new)
