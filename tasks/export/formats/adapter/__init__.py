"""Adapters: what was trained beside a base that others have, without the base.

factors.py   the factors of an adapter's changes, read, and those of several as one
folder.py    a folder as PEFT loads it
gguf.py      a GGUF file as llama.cpp loads it
"""

from tasks.export.formats.adapter.folder import Adapter
from tasks.export.formats.adapter.gguf import GgufAdapter

__all__ = ["Adapter", "GgufAdapter"]
