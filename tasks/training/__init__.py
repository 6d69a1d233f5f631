"""The code shared by everything that trains or measures a model.

logs.py               log.jsonl, one row per step
plots.py              curves
device_peak.py        peak FLOP/s and memory, measured
device_lock.py        the lock of a device
batches.py            how a global batch is shared out
bits_per_byte.py      the score that compares models with different tokenizers
chain.py              the order of post-training
held_out.py           token shards of held-out text, made if a profile lacks them
model_folder.py       a model passed between stages carries its tokenizer
adopted_model.py      checks a model made elsewhere
checkpoint_marker.py  the marker of a whole checkpoint: identity, step, digests of its files
states_only.py        loads checkpoints, which are pickles, without running code in them
retention.py          which checkpoints are kept
adapters/             adapters over a frozen model
tracking/             experiment trackers
recovery/             recovery from lack of memory and lost hosts, remote checkpoints, fault injection
deepspeed_patches.py  turns off an operator that DeepSpeed would compile, and sets float32 sums
"""
