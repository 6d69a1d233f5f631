"""The `tokenizer` stage: byte-level BPE, so that every text has ids and every id sequence has bytes.

BPE over bytes (Sennrich et al. 2016; Radford et al. 2019), with the pre-tokenizer of GPT-2, GPT-4 or Llama 3
(patterns.py), in the format of the `tokenizers` library: it loads in transformers, llama.cpp and most servers without
our code.

Special tokens are for control, never text. A document that contains the characters `<|endoftext|>` is encoded as those
characters (`load_for_documents`); only the pipeline itself adds an end-of-text id, and only rendered chat templates are
parsed for special tokens. EOS is also BOS; the tokenizer adds neither.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.tokenizer import CHAT_TEMPLATE_PATH, EOS, PAD
from storage.artifact import Artifact
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.tokenizer.adopted import check_adopted
from tasks.tokenizer.compare import check_libraries, fingerprints
from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.extension import extend
from tasks.tokenizer.kept_vocabulary import keep, kept_tokenizer
from tasks.tokenizer.load import load_for_documents
from tasks.tokenizer.patterns import pre_tokenizer
from tasks.tokenizer.sample import Sample, draw_sample

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from tasks.tokenizer.bpe.train import Learnt


def _sources(config: TokenizerConfig) -> dict[str, str]:
    kept = kept_tokenizer(config)
    return fingerprints(config) if kept is None else {**fingerprints(config), "keep": kept.digest}


@stage(version=4, name="tokenizer", runtime=("data",), sources=_sources, adopted=check_adopted)
def train_tokenizer(config: TokenizerConfig, documents: Artifact, base: Artifact | None, out: Output) -> None:
    """Learn a byte-level BPE vocabulary from a sample of each source, and check that it is lossless. With
    `config.extend`, learn further tokens for that of the `base`.

    Reads documents; writes the tokenizer's files with the chat template, as AutoTokenizer loads them, and report.md.
    The sample is selected by the hash of the document's id, so the result does not depend on order, shards or workers.
    It is the same, byte for byte, as from the trainer of `tokenizers`, in a fraction of the time. With `config.keep`
    nothing is learned: an earlier tokenizer is copied.
    """
    from tasks.tokenizer.bpe.train import settled_above
    from tasks.tokenizer.proof import prove
    from tasks.tokenizer.report import publish
    from tasks.tokenizer.words import prove_words

    check_libraries(config)
    if base is not None:
        extend(config, documents, base, out)
        return
    kept = kept_tokenizer(config)
    if kept is not None:
        keep(config, kept, documents, out)
        return
    tokenizer, sample, learnt = learn(config, documents.files("*.parquet"), out)
    _write(tokenizer, config.special_tokens, out.path)
    encoder = prove(out.path, config.special_tokens)
    loaded = load_for_documents(out.path)
    least = settled_above(learnt, vocab_size=config.vocab_size, min_frequency=config.min_frequency)
    publish(loaded, encoder, config, sample, learnt, prove_words(loaded, sample.pretokens, least), out)


def learn(config: TokenizerConfig, shards: list[Path], out: Output) -> tuple[Tokenizer, Sample, Learnt]:
    """The tokenizer learned from a sample of the shards, the sample, and the merges in the order of learning."""
    from tasks.tokenizer.bpe.train import to_tokenizer, train

    sample = draw_sample(config, shards, out)
    learnt = train(
        *sample.pretokens,
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        special_tokens=config.special_tokens,
    )
    split = pre_tokenizer(config.pattern)
    return to_tokenizer(learnt.merges, learnt.vocabulary, config.special_tokens, split), sample, learnt


def _write(tokenizer: Tokenizer, special_tokens: Sequence[str], folder: Path) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    shutil.copyfile(CHAT_TEMPLATE_PATH, folder / "chat_template.jinja")
    named = {"bos_token": EOS, "eos_token": EOS, "pad_token": PAD}
    others = [token for token in special_tokens if token not in named.values()]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "additional_special_tokens": others,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1 << 30,  # the limit is the model's, not the tokenizer's
    }
    _write_json(folder / "tokenizer_config.json", config)
    _write_json(folder / "special_tokens_map.json", {**named, "additional_special_tokens": others})


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
