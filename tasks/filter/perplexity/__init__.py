"""Perplexity of documents under an n-gram language model that the pipeline trains itself."""
