"""The stage `score`: one model, one benchmark, one artifact.

config.py      what is asked, and how
stage.py       the stage; benchmarks of the same model are measured together, by one child
run.py         the child: lm-evaluation-harness in process
model.py       the model as the harness asks it
packed.py      many sequences in one row, what they begin with in common once
shared_prefix.py   the same for prompts that are answered in text
open_model.py      which kind of model a folder is
llama.py       a GGUF file as the harness asks it, by llama.cpp
hosted.py      an endpoint as the harness asks it
repeats.py     samples of one problem told apart
local.py       the benchmarks that `download` prepares itself, as tasks of the harness
result.py      what the harness answers, as score.json and items.jsonl
"""
