"""Adapters over a frozen model, by PEFT, in place of training all its weights.

config.py      the settings
lora.py        the settings as PEFT's, for the layers of a model
quantized.py   a frozen model in 4 bits
save.py        writes adapter/, and model/ with the adapter merged, and proves that they agree
"""
