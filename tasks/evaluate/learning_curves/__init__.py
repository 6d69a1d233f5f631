"""Learning curves: snapshots of a pretraining run as models, and any of their scores as a curve over tokens.

snapshots.py  the snapshots of a run as models, and the tokens that each has seen
curve.py      a score over tokens, as a table and as a plot
report.py     the curves of an evaluation
"""
