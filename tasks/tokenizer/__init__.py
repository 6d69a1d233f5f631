"""The `tokenizer` stage: a byte-level BPE vocabulary; and how documents are encoded by it.

config.py      choices of the vocabulary
patterns.py    how text is cut into pre-tokens, by the names that others know
stage.py       learns the merges and writes what transformers loads
keep.py        an earlier vocabulary, taken as it is
sample.py      which documents are learned from, and which are measured
prove.py       checks before publishing: nothing is lost, and all loaders agree
words.py       no word is split that the vocabulary has room for; tokens as people read them
report.py      measures and tables, and report.md
compare.py     other vocabularies on the same text
load.py        the tokenizer as documents are encoded with it
characters.py  letters, numbers and white space, as the library sees them
kernels.py     compiled: bytes to pre-tokens, pre-tokens to ids
bpe/           merges from counts of pre-tokens, as the library's own trainer learns them
split.py       pre-tokens of a column of texts
tables.py      a tokenizer.json as the kernels take it
encode.py      ids of a column of texts, by the kernels or by the library
"""

from tasks.tokenizer.config import BYTE_TOKENS, TokenizerConfig
from tasks.tokenizer.load import load_for_documents
from tasks.tokenizer.stage import train_tokenizer

__all__ = [
    "BYTE_TOKENS",
    "TokenizerConfig",
    "load_for_documents",
    "train_tokenizer",
]
