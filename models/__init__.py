"""The transformer, its presets and arithmetic, conversion to and from transformers, the chat template."""
