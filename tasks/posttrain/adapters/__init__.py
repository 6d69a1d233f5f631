"""Adapters over a frozen model, by PEFT, in place of training all its weights.

config.py   the settings
lora.py     those settings as PEFT's, for the layers of a model
save.py     adapter/, and model/ with the adapter merged, which is proved
"""
