"""Model-based quality: a classifier of good text against ordinary text."""
