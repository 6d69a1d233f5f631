"""The likeliest tokens of a teacher behind an endpoint, asked for once before all trainings on the same rows.

config.py   the settings that they depend on
stage.py    the stage `top_tokens`, which `distill` obtains
ask.py      its child
table.py    what is asked of a row, and the answers of a batch
"""
