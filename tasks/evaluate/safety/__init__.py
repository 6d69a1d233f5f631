"""Safety of models: abuse, personal data and training text in their output, refusals, and social bias.

config.py       the section of a profile
stage.py        the stage `safety` of one model
questions.py    the user's files
requests.py     the prompts for a model
generate.py     the stage's child, which generates continuations
toxicity.py     abuse and personal data in continuations
memorisation.py training text repeated word by word
training_text/  beginnings of documents, and pieces of texts in them
refusals.py     whether an answer refuses
bias.py         BBQ's scores
shares.py       shares and means with intervals
report.py       tables for people
rows.py         scores and items of a model's safety, for tables and comparisons
all_models.py   safety of all models, for `evaluate`
"""
