"""A sequence classifier of transformers as a scorer, and a fast model before it that settles the clear cases.

config.py     where it comes from, what its score is, what goes before it
source.py     its files: found, known by their digests, checked
stage.py      the stage that takes them
signal_model.py       the model of a signal: those files, the first model of a cascade, precision by threshold
pieces.py     documents cut into pieces that the classifier can read
scorer.py     pieces and texts scored
first_model.py      the first model of a cascade, used
workers.py    where scoring runs: worker processes on a CPU, one for each GPU
cascade.py    the first model made: trained on the classifier's own scores, with cuts that keep to an agreement
calibrate.py  what threshold brings what precision, on labelled texts
"""
