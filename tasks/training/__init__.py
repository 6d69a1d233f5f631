"""Shared by all stages that train or measure a model.

logs.py            log.jsonl, a row per step
plots.py           curves
peak.py            peak FLOP/s and memory, measured
batches.py         sharing a global batch among ranks
bits_per_byte.py   the score that compares models of different tokenizers
model_folder.py    a model on its way between stages carries its tokenizer
checkpoint_marker.py  what makes a checkpoint whole: identity, step, digests of its files
retention.py       which checkpoints are kept
"""
