"""Documents that a model writes from those of `download`: rewritten, as questions and answers, summed up.

config.py   the settings
prompts.py  the prompts of ours, and how a document is put into one
choose.py   which documents are asked about, and the requests
judge.py    which answers are documents
report.py   the tables of the stage's page
stage.py    the stage
"""

from tasks.synthesise.config import SynthesiseConfig
from tasks.synthesise.stage import synthesise

__all__ = ["SynthesiseConfig", "synthesise"]
