"""Models in the runtimes that serve them, behind one protocol: to prove an export, for chat and for serving.

protocol.py       the interface of every runtime
token_runtime.py  text and conversations by a folder's tokenizer, for runtimes that only take ids
transformers.py   a model folder in transformers, quantized checkpoints included
greedy.py         greedy answers of an open model of transformers, many in a batch
batches.py        greedy or sampled answers, each with its own seed
llama_cpp.py      a GGUF file in llama.cpp
llama_library.py  the same file, for whole texts
kv_cache.py       a graph of one step with a KV cache
onnx.py           such a graph in onnxruntime
torch_export.py   such a program in torch, traced or compiled
speculative.py    speculative decoding, in transformers and llama.cpp
"""
