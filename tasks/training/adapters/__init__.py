"""Adapters over a frozen model, by PEFT, in place of training all its weights.

config.py      the settings
lora.py        those of LoRA as PEFT's, for the layers of a model
whole.py       the parts that are trained whole beside it
virtual.py     virtual tokens: how they begin, how they are kept beside their base
quantized.py   a frozen model in 4 bits
save.py        writes adapter/, and model/ with the adapter merged, and proves that they agree
"""
