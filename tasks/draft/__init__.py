"""A small model that guesses the released model's next tokens, for speculative decoding.

config.py  the settings
stage.py   the stage
"""

from tasks.draft.config import DraftConfig
from tasks.draft.stage import draft

__all__ = ["DraftConfig", "draft"]
