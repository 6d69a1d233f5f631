"""The `tokenizer` stage, a byte-level BPE vocabulary, and encoding documents by it.

config.py      the stage's config
patterns.py    how text is cut into pre-tokens, under the names that other tools use
stage.py       learns the merges and writes a tokenizer that transformers loads
extension.py   learns further tokens for the tokenizer of a base
adopted.py     checks a tokenizer that was made elsewhere
kept_vocabulary.py        takes an earlier vocabulary over unchanged
own_pretokens.py          the words of a sample as a base cuts them
sample.py      which documents to learn from, and which to measure on
proof.py       checks before publishing: round trips, and agreement with other loaders
words.py       frequent words are single tokens if there is room; how tokens are displayed
report.py      measurements and tables, and report.md
compare.py     other vocabularies on the same text
load.py        the tokenizer set up for encoding documents
bpe/           merges learned from counts of pre-tokens, equal to those of the library's trainer
encoder/       ids of a column of texts, by compiled kernels or by the library
"""

from tasks.tokenizer.config import BYTE_TOKENS, TokenizerConfig
from tasks.tokenizer.load import load_for_documents
from tasks.tokenizer.stage import train_tokenizer

__all__ = ["BYTE_TOKENS", "TokenizerConfig", "load_for_documents", "train_tokenizer"]
