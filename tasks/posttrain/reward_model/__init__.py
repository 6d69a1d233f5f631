"""The reward model: a judge of answers, trained on preferences, beside the chain.

model.py        a sequence classifier that begins as a model of the chain, and the trained one that judges
calibration.py  accuracy with its interval, and whether probabilities are shares
measure.py      what the trained judge makes of rows
report.py       the stage's counts and table of that
"""
