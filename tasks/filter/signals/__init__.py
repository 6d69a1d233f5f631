"""Signals of the profile: a user's own function, or a sequence classifier, under a name and with bounds.

config.py      what is measured: a Python function, or a classifier
rules.py       the bounds on what was measured
family.py      each signal of a profile as a family of the filter
stage.py       the stages: the classifier of a signal, and the signal itself
hook.py        a user's function: found, known by its source, loaded
functions.py   what a function returns, checked, as a side file
scores.py      what a classifier says of the pieces of a document, in columns
"""
