"""Matrices of runs: the arms of an ablation, made as one flow with what they share made once."""
