"""Models in the runtimes that they are used in, behind one protocol: for the proof of an export, chat and serving.

protocol.py      what every runtime does
transformers.py  a model folder in transformers, bitsandbytes checkpoints included
greedy.py        answers of an open model of transformers, many in a batch
batches.py       the same, greedy or sampled, with a seed for each
llama_cpp.py     a GGUF file in llama.cpp
"""
