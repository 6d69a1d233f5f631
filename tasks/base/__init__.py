"""The `base` stage: a model that others trained, in place of `pretrain`.

config.py     where it comes from
source.py     its files, wherever they come from, and what identifies them
gguf.py       a GGUF file as such a folder
check.py      what can't be a base, refused by name
tokenizer.py  its tokenizer and chat template, as the later stages read them
stage.py      the stage: takes the files, checks that transformers builds the model from them
"""

from tasks.base.config import BaseConfig
from tasks.base.stage import base

__all__ = ["BaseConfig", "base"]
