"""What is put behind the names of weights in an ONNX graph."""

TRANSPOSED = ".transposed"  # as matrix products hold them
TIED = ".tied"  # computed from the embeddings
BLOCKS = ".transposed_Q8"  # by onnxruntime, of quantized ones
