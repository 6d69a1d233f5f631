"""A small model that guesses what the released one will say, for speculative decoding.

config.py      what it is made of
vocabulary.py  whose ids it speaks
stage.py       the stage
"""

from tasks.draft.config import DraftConfig
from tasks.draft.stage import draft

__all__ = ["DraftConfig", "draft"]
