"""The `base` stage: an existing model, in place of `pretrain`.

config.py      where it comes from
source.py      its files, wherever they come from, and what identifies them
gguf.py        a GGUF file as a folder in the format of transformers
check.py       refuses what can't be a base, by name
tokenizer.py   its tokenizer and chat template, as the later stages read them
chat.py        reports how the chat template ends turns, and which tokens are learned
checkpoint.py  writes the one checkpoint that the later stages read, and proves it
more_rows.py   rows for further tokens, of a base that is trained with them
stage.py       the stage: takes the files, checks that transformers builds the model from them
"""

from tasks.base.config import BaseConfig
from tasks.base.stage import base

__all__ = ["BaseConfig", "base"]
