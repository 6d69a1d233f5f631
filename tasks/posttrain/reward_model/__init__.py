"""The reward model: a judge of answers, trained on preferences, beside the chain.

model.py        a sequence classifier that starts as a model of the chain, and the trained one that judges
calibration.py  accuracy with its interval, how well calibrated probabilities are, and the report of both
measure.py      the trained judge's rewards on training and held-out rows
"""
