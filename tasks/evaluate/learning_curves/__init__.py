"""Along training: snapshots of a pretraining run as models, and any score of theirs as a curve over tokens.

snapshots.py  which there are, the tokens that each has seen, and each as the folder of a model
curve.py      a score over tokens, as a table and as a plot
report.py     the curves of an evaluation
"""
