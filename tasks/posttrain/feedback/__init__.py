"""Preferences by AI feedback, under written principles, in place of people's (Bai et al. 2022).

config.py    the settings, and the principles where a profile names none
ask.py       what is asked
speaker.py   whoever answers: the model, or an endpoint
local.py     the model
revise.py    answers that are criticised and written again
judge.py     answers of which the better one is named
prompts.py   which conversations are asked about
run.py       the child process
stage.py     the stage
"""

from tasks.posttrain.feedback.config import FeedbackConfig
from tasks.posttrain.feedback.stage import feedback

__all__ = ["FeedbackConfig", "feedback"]
