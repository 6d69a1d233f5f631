"""What all that train or measure a model share.

logs.py            log.jsonl, a row a step
plots.py           curves
peak.py            the peak of a device, measured
bits_per_byte.py   the score that compares models of different tokenizers
model_folder.py    a model on its way between stages carries its tokenizer
checkpoint_marker.py  what makes a checkpoint whole: identity, step, digests of its files
retention.py       which checkpoints are kept
"""
