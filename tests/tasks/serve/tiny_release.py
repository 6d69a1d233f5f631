"""A folder as `export` writes it, with a tiny model's GGUF file: what an engine and a chat need of a release."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.tasks.tiny_model import make_model

GGUF = "gguf/model-f32.gguf"
LARGE = 30.0  # of an embedding, over the others' 0.02
SURE = 3.0  # of a row of the head: a logit of about 24 over the others' 0


def make_release(folder: Path, says: str = "", *, again: bool = False, **shape: Any) -> Path:
    """The folder, with a tokenizer and a chat template. The weights are drawn at random (seed 1). With `says`, which
    must have each token once, the likeliest answer to anything is that text, `again` and again."""
    from tasks.export.formats.gguf.file import write_gguf

    made = make_model(folder / "release", **{"tie_embeddings": not says, **shape})
    if says:
        teach(made, says, again)
    (made / "gguf").mkdir()
    write_gguf(made, made / GGUF, "f32")
    return made


def teach(folder: Path, says: str, again: bool) -> None:
    """Make each token of the text the likeliest after the one before, and with `again` the first after the last: a
    dimension of the stream for each. The embeddings must not be tied."""
    from safetensors.numpy import load_file, save_file

    from models.conversation import render, turns_of
    from models.tokenizer import load_tokenizer, text_ids

    tokenizer = load_tokenizer(folder)
    prompt = render(tokenizer, [{"role": "user", "content": "a"}], add_generation_prompt=True)["input_ids"]
    said = text_ids(tokenizer, says)
    chain = [prompt[-1], *said, said[0] if again else turns_of(tokenizer).end]
    assert len({*chain[:-1]}) == len(chain) - 1, "a token occurs twice"
    weights = load_file(folder / "model.safetensors")
    embeddings, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    assert len(chain) <= embeddings.shape[1]
    for dimension, (token, following) in enumerate(pairwise(chain)):
        embeddings[token, dimension] = LARGE
        head[following, dimension] = SURE
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
