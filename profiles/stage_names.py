"""The stages of a profile in order: what comes before the chain of post-training, the chain, and what comes after."""

from __future__ import annotations

from tasks.training.chain import LINKS

FROM_SCRATCH = ("download", "dedup", "filter", "tokenizer", "tokenize", "pretrain")
FROM_BASE = ("download", "base")
CONTINUED = ("download", "base", "dedup", "filter", "tokenize", "pretrain")  # a base that is trained on documents
EXTENDED = (*CONTINUED[:4], "tokenizer", *CONTINUED[4:])  # and gets tokens for them
AT_THE_END = ("evaluate", "draft", "export")
STAGE_NAMES = (*FROM_SCRATCH, "sft", "dpo", "evaluate", "export")  # of a profile with every section at its default
TRAINED = ("pretrain", *LINKS)
ALL = tuple(dict.fromkeys((*FROM_SCRATCH, *FROM_BASE, *LINKS, *AT_THE_END)))
