"""Model-based quality: a classifier of good against ordinary text."""
