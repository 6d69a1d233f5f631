"""A base trained on with a context above its own.

scaling.py   the key pretrain.rope_scaling
extend.py    the base's positions, scaled for the new context, or a refusal
measure.py   loss by position and hidden numbers found, before and after
report.py    both as tables and a figure
"""
