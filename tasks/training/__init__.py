"""Shared by all stages that train or measure a model.

logs.py            log.jsonl, a row per step
plots.py           curves
peak.py            peak FLOP/s and memory, measured
batches.py         sharing a global batch among ranks
bits_per_byte.py   a score comparable across tokenizers
model_folder.py    model, tokenizer and shards belong together
checkpoint_marker.py  what makes a checkpoint whole: identity, step, digests of its files
retention.py       which checkpoints are kept
"""
