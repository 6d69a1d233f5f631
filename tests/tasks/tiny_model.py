"""A model and its data, small enough to make in a test: 600 tokens, width 64, two layers, questions and answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from models.config import ModelConfig
from models.presets import derive
from models.tokenizer import ASSISTANT, load_tokenizer, text_ids, tokenizer_digest
from storage.artifact import Artifact
from storage.shards.documents import Document, write_documents
from storage.shards.tokens import write_tokens
from tasks.stage.output import Output
from tasks.tokenizer import TokenizerConfig, load_for_documents, train_tokenizer
from tests.runtimes import runtime_of

ANIMALS = (
    "fox",
    "hen",
    "owl",
    "cat",
    "dog",
    "bee",
    "cow",
    "ant",
    "bat",
    "eel",
    "elk",
    "emu",
    "yak",
    "koi",
    "jay",
    "ram",
)
PLACES = ("wood", "yard", "tree", "house", "field", "hive", "barn", "hill", "cave", "lake", "north", "plain")
RUNTIME = runtime_of(workers=1, threads=1, device="cpu")


def texts() -> Iterator[str]:
    """Sentences with enough variety for a few hundred merges."""
    for animal in ANIMALS:
        for place in PLACES:
            yield (
                f"The {animal} lives in the {place}. Nobody in the {place} has seen the {animal} since it was young.\n"
                f"An old {animal}'s home, they say, isn't far from {place} number {len(animal) * len(place)}!"
            )


def make_model(folder: Path, *, family: str = "llama", vocab_size: int = 600, **shape: Any) -> Path:
    """A model folder with tokenizer and chat template, weights drawn at random (seed 1).

    The tokenizer is the one in the folder `tokenizer` beside it, which a test may have trained itself.
    """
    import torch

    from models.convert import save
    from models.transformer import Transformer

    tokenizer = make_tokenizer(folder.parent / "tokenizer")
    torch.manual_seed(1)
    config = ModelConfig(**{"family": family, "depth": 2, "width": 64, "heads": 4, "context": 128, **shape})
    model = Transformer(derive(config, vocab_size))
    save(model, folder, tokenizer)
    return folder


def speaking(folder: Path) -> Path:
    """The model, which answers in text. With tied weights that are drawn the likeliest token is the last one, which
    after a prompt is a control token, and those have no text. So it stands for a line feed here, but is less likely."""
    from safetensors.torch import load_file, save_file

    tokenizer = load_tokenizer(folder)
    weights = load_file(folder / "model.safetensors")
    rows = weights["model.embed_tokens.weight"]
    rows[tokenizer.convert_tokens_to_ids(ASSISTANT)] = 0.9 * rows[text_ids(tokenizer, "\n")[-1]]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def make_tokenizer(folder: Path) -> Path:
    """A byte-level BPE of 600 ids, as the pipeline's own stage trains it; made once."""
    if not (folder / "out" / "tokenizer.json").exists():
        write_documents(folder / "documents" / "00000.parquet", (Document.new(text, "test") for text in texts()))
        out = Output.at(folder, runtime=RUNTIME)
        train_tokenizer.function(TokenizerConfig(vocab_size=600), Artifact.at(folder / "documents"), out)
    return folder / "out"


def make_instructions(folder: Path) -> Path:
    """Questions on where an animal lives, as `download` writes them."""
    rows = [
        {"id": f"{animal}-{place}", "source": "test", "messages": [*question(animal, number), answer(place)]}
        for animal in ANIMALS
        for number, place in enumerate(PLACES)
    ]
    return write_rows(folder / "all.jsonl", rows)


def make_preferences(folder: Path) -> Path:
    """Polite answers are preferred to terse ones."""
    rows = [
        {
            "id": f"{animal}-{place}",
            "source": "test",
            "prompt": question(animal, number),
            "chosen": [answer(place)],
            "rejected": [{"role": "assistant", "content": f"{place}, no doubt about that at all"}],
        }
        for animal in ANIMALS
        for number, place in enumerate(PLACES)
    ]
    return write_rows(folder / "all.jsonl", rows)


def make_validation(folder: Path, tokenizer_folder: Path, number: int = 12) -> Path:
    """Token shards of texts, two of them."""
    tokenizer = load_for_documents(tokenizer_folder)
    chosen = list(texts())[:number]
    for shard, part in enumerate((chosen[: number // 2], chosen[number // 2 :])):
        write_tokens(
            folder / f"{shard:05d}.tokens",
            [np.array([*tokenizer.encode(text).ids, 0], np.uint16) for text in part],
            vocab_size=600,
            eos_id=0,
            tokenizer_digest=tokenizer_digest(tokenizer_folder),
            text_bytes=sum(len(text.encode()) for text in part),
        )
    return folder


def question(animal: str, number: int | None = None) -> list[dict[str, str]]:
    """With a number it is another prompt, and held out or not by itself."""
    which = "" if number is None else f" {number}"
    return [{"role": "user", "content": f"Where does the {animal}{which} live?"}]


def answer(place: str) -> dict[str, str]:
    return {"role": "assistant", "content": f"It lives in the {place}."}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Rows as JSON lines; the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path.parent
