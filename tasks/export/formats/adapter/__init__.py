"""Adapters: the trained changes to a base that users already have, without the base.

factors.py   reads the factors of an adapter's changes, and joins those of several
folder.py    a folder as PEFT loads it
gguf.py      a GGUF file as llama.cpp loads it
"""

from tasks.export.formats.adapter.folder import Adapter
from tasks.export.formats.adapter.gguf import GgufAdapter

__all__ = ["Adapter", "GgufAdapter"]
