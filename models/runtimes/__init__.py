"""Models in the runtimes that they are used in, behind one protocol: for the proof of an export, chat and serving.

protocol.py      what every runtime does
tokenized.py     text and conversations by a folder's tokenizer, for those that are asked in ids
transformers.py  a model folder in transformers, quantized checkpoints included
greedy.py        answers of an open model of transformers, many in a batch
batches.py       the same, greedy or sampled, with a seed for each
llama_cpp.py     a GGUF file in llama.cpp
llama_library.py the same file, for whole texts
cached.py        a graph of one step, with the keys and values of all before
onnx.py          such a graph in onnxruntime
exported.py      such a program of torch, as it was traced or compiled
"""
