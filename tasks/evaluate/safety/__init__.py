"""What models say that they had better not: abuse, personal data, training text; refusals, and social bias.

config.py      what a profile sets
stage.py       the stage `safety` of one model
questions.py   the user's files
asked.py       what a model is asked
continuing.py  its child
toxic.py       abuse and personal data in continuations
memorised.py   training text repeated word by word
training_text/ beginnings of documents, and pieces of texts in them
refused.py     whether an answer refuses
bias.py        BBQ's scores
shares.py      shares and means with intervals
report.py      tables for people
rows.py        several models beside each other
all_models.py  what `evaluate` calls
"""
