"""The significance of measured numbers: their error, the score of guessing, and which differences are real.

estimate.py     a mean with its standard error and interval, clustered where questions are
chance.py       a score beside that of guessing, in words
sign_flips.py   the test of a paired difference: exact, or with sampled flips
paired.py       two models on the same questions
answered.py     a stored evaluation: scores and answers per question
compare.py      two evaluations, or the models of one, task by task, corrected for their number
texts.py        whether bits per byte are of the same text
gate_config.py  conditions of a release, as a profile states them
gates.py        whether they are met, and the error that stops a release
"""
