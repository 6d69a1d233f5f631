"""Language modelling: how well one model predicts text that it was not trained on. An artifact of its own per model.

config.py       what is measured
stage.py        the stage `language_modelling`, which `evaluate` obtains for each model
measure.py      its child
scores.py       of each token: its loss, the confidence of the prediction, whether it was right
documents.py    the documents of token shards: their sources and bytes
held_out.py     bits per byte of the held-out split, and every token's part of it
retokenized.py   held-out documents for a model with another tokenizer than theirs
ratios.py       means per byte or token, with standard errors over documents; by source, by length, by position
calibration.py  whether the model is as often right as it is confident
files.py        text files of the user
rolling.py      their perplexity, as lm-evaluation-harness defines it
report.py       tables, plots and the page
"""

from tasks.evaluate.language.config import LanguageConfig

__all__ = ["LanguageConfig"]
