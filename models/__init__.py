"""The transformer, its shapes, memory and compute estimates, conversion to and from transformers, the chat template."""
