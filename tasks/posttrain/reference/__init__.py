"""Log-probabilities of answers under a reference model, computed once for all losses and learning rates.

config.py   the settings that they depend on
stage.py    the stage `reference`, which `dpo` obtains
score.py    its child
table.py    the file, and its values joined to rows
"""
