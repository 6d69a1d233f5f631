"""Rows of post-training: read, rendered by the chat template, dropped with a reason."""
