"""Log-probabilities of answers under a reference model, computed once for all losses and learning rates.

config.py   what they depend on, beside the model and the pairs
stage.py    the stage `reference`, which `dpo` obtains
score.py    its child
table.py    the file, and the rows that get their numbers from it
"""
