"""Model-based quality: a classifier that separates good from ordinary text."""
