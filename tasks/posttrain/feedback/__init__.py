"""Preferences by AI feedback, under written principles, in place of people's (Bai et al. 2022).

config.py    the settings, and the default principles
ask.py       the wording of requests
speaker.py   the protocol of whoever answers: the model, or an endpoint
local.py     the model
revise.py    answers that are criticised and written again
judge.py     pairs of answers whose better one a judge names
prompts.py   the draw of conversations
run.py       the child process
stage.py     the stage
"""

from tasks.posttrain.feedback.config import FeedbackConfig
from tasks.posttrain.feedback.stage import feedback

__all__ = ["FeedbackConfig", "feedback"]
