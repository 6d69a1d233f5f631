"""What everything that trains or measures a model shares.

logs.py                 log.jsonl, one row per step
plots.py                curves
device_peak.py                 peak FLOP/s and memory, measured
batches.py              how a global batch is shared out
bits_per_byte.py        the score that compares models of different tokenizers
chain.py                the order of post-training
held_out.py             token shards of held-out text, made where a profile has none
model_folder.py         a model passed between stages carries its tokenizer
adopted_model.py        a model made elsewhere, checked
checkpoint_marker.py    what makes a checkpoint whole: identity, step, digests of its files
states_only.py          loads checkpoints, which are pickles, without running what they may hold
retention.py            which checkpoints are kept
recovery/               lack of memory, and faults on purpose
deepspeed_patches.py       what it must not compile at run time, and how it sums
"""
