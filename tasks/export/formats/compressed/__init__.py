"""Formats in the layout of compressed-tensors, which vLLM and transformers load: 4-bit weights, or 8-bit weights and
activations. The layout is written here, with nothing but safetensors; the package reads it to prove it.

compressed.py   the formats
layers.py       which layers are quantized, in groups of how many columns
rounding.py     whole numbers times a scale; scales by search
methods.py      the ways to round a model, block by block
calibration.py  the model run block by block over text
gptq.py         GPTQ
awq.py          AWQ's factors
smooth.py       SmoothQuant's factors
folds.py        what feeds what, and where factors of columns go
unfold_scales.py         the factors taken back
packing.py      eight codes in a word
checkpoint.py   the files
"""

from tasks.export.formats.compressed.compressed import Compressed

__all__ = ["Compressed"]
