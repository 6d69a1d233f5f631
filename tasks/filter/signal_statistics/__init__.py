"""A table of signals by language, and the thresholds that it suggests."""
