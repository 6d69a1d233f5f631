"""Formats in the layout of compressed-tensors, which vLLM and transformers load: 4-bit weights, or 8-bit weights and
activations. This package writes the layout with only safetensors, and the proof reads it by compressed-tensors.

compressed.py     the formats
layers.py         which layers are quantized, in groups of how many columns
rounding.py       integers times a scale, and the search for scales
methods.py        the methods of rounding a model, block by block
calibration.py    runs the model block by block over text
gptq.py           GPTQ
awq.py            AWQ's factors
smooth.py         SmoothQuant's factors
folds.py          which layer feeds which, and where factors of columns go
unfold_scales.py  undoes the factors
packing.py        eight codes in a word
checkpoint.py     the files
"""

from tasks.export.formats.compressed.compressed import Compressed

__all__ = ["Compressed"]
