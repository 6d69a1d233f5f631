"""The stages of a profile in order: what comes before the chain of post-training, the chain, and what comes after."""

from __future__ import annotations

from tasks.training.chain import LINKS

FROM_SCRATCH = ("download", "synthesise", "dedup", "filter", "tokenizer", "tokenize", "pretrain")
FROM_BASE = ("download", "base")
# A base that is trained on documents
CONTINUED = ("download", "base", "synthesise", "dedup", "filter", "tokenize", "pretrain")
EXTENDED = (*CONTINUED[:5], "tokenizer", *CONTINUED[5:])  # and gets tokens for them
AT_THE_END = ("evaluate", "draft", "export")
# Of a profile with every section at its default
STAGE_NAMES = (*(name for name in FROM_SCRATCH if name != "synthesise"), "sft", "dpo", "evaluate", "export")
TRAINED = ("pretrain", *LINKS)
ALL = tuple(dict.fromkeys((*FROM_SCRATCH, *FROM_BASE, *LINKS, *AT_THE_END)))
