"""Pages of what compares many runs: arms of an ablation, a ladder, mixtures."""
