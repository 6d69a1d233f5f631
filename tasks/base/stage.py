"""The `base` stage: takes a model that others trained, checks it, and leaves it as the later stages read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.pretrained import context_of
from models.tokenizer import BASE_FIELD, DIGEST_FIELD, load_tokenizer, tokenizer_digest
from storage.errors import SourceError
from tasks.base.chat import TURN
from tasks.base.check import check_files, check_model
from tasks.base.checkpoint import write_checkpoint
from tasks.base.config import BaseConfig
from tasks.base.gguf import prove
from tasks.base.source import fetch, fingerprint, gguf_of, link_files, model_of
from tasks.base.tokenizer import BEGUN, OURS, take_tokenizer
from tasks.stage import stage
from tasks.stage.output import Output

STEPS = 5  # of the progress bar
FLOAT16_LARGEST = 65504


@stage(version=2, runtime=("compute",), sources=fingerprint)
def base(config: BaseConfig, out: Output) -> None:
    """Take an existing model in the format of transformers as the one that post-training starts from.

    Writes model/, the one checkpoint that later stages read: the weights as transformers loads them, under the names
    that it saves them by, the config with the digest of the tokenizer and without dropout, and the tokenizer with its
    chat template, or with ours if it has none. Raises SourceError for code, pickles, quantized weights, NaN and
    infinite weights, for files that contradict each other, and for a model that transformers can't build from these
    files only.
    """

    def now(done: int, what: str) -> None:
        out.progress(done, STEPS, "steps", what)

    now(0, "dequantizing" if config.gguf else "fetching" if config.repository else "reading")
    folder = fetch(config, out.scratch)
    if config.artifact is not None:
        out.uses[f"base.artifact {config.artifact}"] = model_of(config.artifact).origin
    check_files(folder)
    folder = link_files(folder, out.scratch)
    now(1, "building the model")
    known = check_model(folder)
    now(2, "writing the tokenizer")
    model = out.path / "model"
    written = take_tokenizer(folder, out)
    if written["ids"] > known.vocab_size:
        raise SourceError(
            f"The tokenizer of the base has {written['ids']:,} ids, but the model has {known.vocab_size:,}.",
            "Use the tokenizer that belongs to it.",
        )
    now(3, "writing and proving the weights")
    fields = {BASE_FIELD: config.named, DIGEST_FIELD: tokenizer_digest(model)}
    ends, notes, largest = write_checkpoint(folder, model, fields, written["ends"])
    for note in notes:
        out.note(f"the base: {note}")
    if largest > FLOAT16_LARGEST:
        out.count(largest_weight=largest)
        out.note(f"the base has weights up to {largest:.3g}, beyond the range of float16")
    if config.gguf is not None:
        prove(gguf_of(config), model)
    if written["template"] == OURS:
        out.note("the base lacks a chat template: it gets ours, whose turns end with its eos_token")
    if written["template"] == BEGUN:
        out.note("the base's chat template leaves out the BOS that every text begins with: BOS is put before it")
    if written["ends_turns"] != "itself":
        out.note(f"the base's chat template: {TURN} {written['turns'][TURN]}")
    if written["rebuilt_as"]:
        out.warn(
            f"transformers' AutoTokenizer builds a {written['rebuilt_as']} from this base, which splits text otherwise "
            "than its tokenizer.json. Gristmill and the model card use PreTrainedTokenizerFast, which reads the file"
        )
    _report(config.named, known, written, ends, out)


def _report(name: str, config: Any, written: Mapping[str, Any], ends: Sequence[int], out: Output) -> None:
    size = sum(path.stat().st_size for path in (out.path / "model").glob("*.safetensors"))
    context, tokenizer = context_of(config), load_tokenizer(out.path / "model")
    ours = ["with our chat template"] if written["template"] == OURS else []
    out.count(
        vocab_size=config.vocab_size,
        context=context,
        weight_bytes=size,
        own_template=not ours,
        summary=", ".join(dict.fromkeys([name, config.model_type, f"context {context:,}", *ours])),
    )
    rows = {
        "base": name,
        "architecture": config.model_type,
        "context": f"{context:,}",
        "ids of the tokenizer": f"{written['tokens']:,}",
        "chat template": written["template"],
        **written["turns"],
        "a generation ends at": " ".join(tokenizer.convert_ids_to_tokens(list(ends))),
    }
    out.table("Base", [{"what": what, "value": value} for what, value in rows.items()])
    out.table("What is learned of a conversation", written["learned"])
