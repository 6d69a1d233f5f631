"""Language modelling: how well a model predicts text that it was not trained on. Each model has its own artifact.

config.py       the texts to measure
stage.py        the stage `language_modelling`, which `evaluate` obtains for each model
measure.py      its child
scores.py       each token's loss, the confidence of its prediction, whether it was right
llama.py        the same scores by llama.cpp
documents.py    the documents of token shards: their sources and bytes
held_out.py     bits per byte of the held-out split, and every token's part of it
retokenize.py   held-out documents for a model with another tokenizer
ratios.py       means per byte or token, with standard errors over documents, and labels of lengths and positions
calibration.py  whether the model is right as often as it is confident
files.py        the user's text files
rolling.py      their perplexity, as lm-evaluation-harness defines it
report.py       tables, plots and the page
"""

from tasks.evaluate.language.config import LanguageConfig

__all__ = ["LanguageConfig"]
