"""The `export` stage: a release in every asked-for format, each proved in the runtime that it is for.

config.py        what a profile says: formats and tolerances
stage.py         the stage: starts the child, writes the model card
run.py           the child: writes, loads back, compares
checkpoints.py   safetensors and bitsandbytes, for transformers
gguf_file.py     GGUF, for llama.cpp
runtime.py       GGUF in llama.cpp, for the proof and for `gristmill chat`
parity.py        token ids, log-probabilities, greedy text and perplexity against the checkpoint
card.py          the model card
"""

from tasks.export.config import ExportConfig
from tasks.export.stage import export

__all__ = ["ExportConfig", "export"]
