"""A transformers sequence classifier as a scorer, optionally after a fast model that settles the clear cases.

config.py        its source, its score, and the model before it
source.py        its files: their digests and checks
stage.py         the stage that takes the files
signal_model.py  the model of a signal: these files, the first model of a cascade, precision by threshold
pieces.py        cuts documents into pieces that the classifier can read
scorer.py        scores pieces and texts
first_model.py   applies the first model of a cascade
workers.py       where scoring runs: worker processes on a CPU, one for each GPU
cascade.py       trains the first model on the classifier's own scores, with cuts that ensure an agreement
calibrate.py     precision by threshold, on labelled texts
"""
