"""Where sampled answers come from.

config.py     the engines of a profile, and what they refuse
engine.py     the interface of an engine, and both ways of transformers
sampling.py   answers by `generate`, each with random numbers of its own
llama_cpp.py  many answers at a time in llama.cpp, whose weights are replaced in memory
open.py       opens an engine, or gives TRL the arguments to do so
mismatch.py   how far an engine's probabilities are from the trainer's, the weights and the limit for that, and its cost
"""
