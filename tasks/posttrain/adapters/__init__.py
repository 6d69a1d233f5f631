"""Adapters over a frozen model, by PEFT, in place of training all its weights.

config.py     the settings
lora.py       those settings as PEFT's, for the layers of a model
quantized.py  a frozen model in 4 bits
standalone.py      which can be released without the base
save.py       adapter/, and model/ with the adapter merged, which is proved
"""
