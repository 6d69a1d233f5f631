"""Formats that are graphs: one step of the decoder, traced by torch.export.

models.py    which models have such a step
decoder.py   the step, and how it is traced
graph.py     what the formats share: files beside the graph, which models they hold
onnx.py      for onnxruntime, in float32 and in int8
names.py     what stands behind the names of weights there
tidy.py      what torch's exporter leaves: names, and what tells of the machine
matrices.py  the checkpoint's matrices in an ONNX graph
exported.py  for torch without transformers: the traced program, and the same compiled
"""
