"""Formats that are graphs: one step of the decoder, traced by torch.export.

models.py    which models have such a step
decoder.py   the step, and how it is traced
graph.py     the shared base: files next to the graph, which models it holds
onnx.py      for onnxruntime, in float32 and in int8
tidy.py      restores names in an exporter's graph and removes traces of the machine
matrices.py  the checkpoint's matrices in an ONNX graph
exported.py  for torch without transformers: the traced program, and the same compiled
"""
