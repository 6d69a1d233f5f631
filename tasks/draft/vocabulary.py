"""A draft speaks the model's ids: with the model's own tokenizer files beside it, if its vocabulary is the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from models.pretrained import load_config
from models.tokenizer import DIGEST_FIELD, copy_tokenizer, load_tokenizer, tokenizer_digest
from storage.errors import TokenizerMismatch


def with_tokenizer_of(model: Path, small: Path, folder: Path) -> Path:
    """The model in `small` with the tokenizer and chat template of `model`, in `folder`.

    Raises TokenizerMismatch for another vocabulary.
    """
    ours, theirs = (load_tokenizer(one).get_vocab() for one in (model, small))
    sizes = [load_config(one).vocab_size for one in (model, small)]
    if ours != theirs or sizes[0] != sizes[1]:
        raise TokenizerMismatch(
            f"The draft has another vocabulary than the released model: {sizes[1]:,} ids, of which "
            f"{len(ours.items() & theirs.items()):,} are those of {sizes[0]:,}.",
            "Take a draft with the same tokenizer, or make one with draft.prune.",
        )
    shutil.copytree(small, folder, copy_function=shutil.copyfile)
    copy_tokenizer(model, folder)
    path = folder / "config.json"
    config = {**json.loads(path.read_text(encoding="utf-8")), DIGEST_FIELD: tokenizer_digest(folder)}
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return folder
