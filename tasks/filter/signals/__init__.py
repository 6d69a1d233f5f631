"""Signals of the profile: a user's own function, or a sequence classifier, under a name and with bounds.

config.py      the settings: a Python function, or a classifier
family.py      each signal of a profile as a filter family, and the bounds on its columns
stage.py       the stages: the classifier of a signal, and the signal itself
functions.py   checks what a function returns, and writes it to a side file
scores.py      sums up a classifier's scores of a document's pieces in columns
"""
