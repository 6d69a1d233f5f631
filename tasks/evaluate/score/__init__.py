"""The stage `score`: one model, one benchmark, one artifact.

config.py         the settings of a benchmark
stage.py          the stage, in which one child measures all benchmarks of a model
run.py            the child: lm-evaluation-harness in process
model.py          a model of transformers for the harness
encoding.py       conversations whose text can't become control tokens
forward/          how it is computed
open_model.py     opens a folder, of whichever kind of model
llama.py          a GGUF file for the harness, by llama.cpp
hosted_model.py  an endpoint for the harness
repeats.py        tells the samples of one problem apart
local.py          the benchmarks that `download` prepares itself, as tasks of the harness
examples.py       the examples before a question
result.py         the harness's results, as score.json and items.jsonl
"""
