"""The `base` stage: takes a model that others trained, checks it, and leaves it as the later stages read it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.conversation import generation_ends, turns_of
from models.tokenizer import BASE_FIELD, DIGEST_FIELD, tokenizer_digest
from storage.errors import SourceError
from storage.shards.lines import parse_json
from tasks.base.chat import ENDS, learned_told, turns_told
from tasks.base.check import check_files, check_model, check_weights
from tasks.base.config import BaseConfig
from tasks.base.source import fetch, files_of, fingerprint, model_of
from tasks.base.tokenizer import BEGUN, OURS, write_tokenizer
from tasks.stage import stage
from tasks.stage.output import Output

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


STEPS = 5  # that are told


@stage(version=2, sources=fingerprint)
def base(config: BaseConfig, out: Output) -> None:
    """Take a model in the format of transformers as the one that post-training starts from.

    Writes model/: its weights, byte for byte, its config with the digest of its tokenizer, and the tokenizer with its
    chat template, or with ours where it has none. Raises SourceError for code, pickles, quantized weights and weights
    that are no numbers, and for a model that transformers doesn't build from these files alone.
    """

    def now(done: int, what: str) -> None:
        out.progress(done, STEPS, "steps", what)

    now(0, "dequantizing" if config.gguf else "fetching" if config.repository else "reading")
    folder = fetch(config, out.scratch)
    if config.artifact is not None:
        out.uses[f"base.artifact {config.artifact}"] = model_of(config.artifact).origin
    check_files(folder)
    model = out.path / "model"
    model.mkdir()
    now(1, "copying the weights")
    for path in files_of(folder):
        if path.suffix == ".safetensors" or path.name.endswith(".index.json"):
            shutil.copyfile(path, model / path.name)
    now(2, "writing the tokenizer")
    tokenizer, template = write_tokenizer(folder, model)
    ends = _write_configs(folder, model, {BASE_FIELD: config.named}, tokenizer)
    now(3, "building the model")
    known = check_model(model)
    now(4, "looking at every weight")
    check_weights(model)
    ids = max(tokenizer.get_vocab().values()) + 1
    if ids > known.vocab_size:
        raise SourceError(
            f"The tokenizer of the base has {ids:,} ids, but the model {known.vocab_size:,}.",
            "Take the tokenizer that belongs to it.",
        )
    if template == OURS:
        out.note("the base has no chat template: it gets ours, whose turns end with its eos_token")
    if template == BEGUN:
        out.note("the base's chat template leaves out the BOS that every text begins with: it is put before it")
    turns = turns_of(tokenizer)
    if turns.by != "itself":
        out.note(
            f"the base's chat template ends a turn with {ENDS[turns.by].format(end=tokenizer.decode([turns.end]))}"
        )
    _report(config.named, known, tokenizer, (template, ends), out)


def _write_configs(
    folder: Path, model: Path, fields: Mapping[str, str], tokenizer: PreTrainedTokenizerFast
) -> list[int]:
    """config.json with the digest of the tokenizer and the name of the base, and generation_config.json, in which what
    ends a text and what ends a turn both end a generation: their ids."""
    settings = {**_read(folder / "config.json"), **fields, DIGEST_FIELD: tokenizer_digest(model)}
    ids = {name: settings[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id") if name in settings}
    generation = _read(folder / "generation_config.json") or ids
    given = generation.get("eos_token_id", settings.get("eos_token_id"))
    ends = given if isinstance(given, list) else [given]
    ends = generation["eos_token_id"] = generation_ends(tokenizer, ends)
    for name, values in (("config.json", settings), ("generation_config.json", generation)):
        (model / name).write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return ends


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = parse_json(path.read_bytes()) if path.is_file() else {}
    return found


def _report(
    name: str, config: Any, tokenizer: PreTrainedTokenizerFast, chat: tuple[str, list[int]], out: Output
) -> None:
    size = sum(path.stat().st_size for path in (out.path / "model").glob("*.safetensors"))
    (template, ends), context = chat, config.max_position_embeddings
    ours = ["with our chat template"] if template == OURS else []
    out.count(
        vocab_size=config.vocab_size, context=context, weight_bytes=size, own_template=template != OURS,
        summary=", ".join(dict.fromkeys([name, config.model_type, f"context {context:,}", *ours])),
    )  # fmt: skip
    rows = {
        "base": name,
        "architecture": config.model_type,
        "context": f"{context:,}",
        "ids of the tokenizer": f"{len(tokenizer):,}",
        "chat template": template,
        **turns_told(tokenizer, ends),
    }
    out.table("Base", [{"what": what, "value": value} for what, value in rows.items()])
    out.table("What is learned of a conversation", learned_told(tokenizer))
