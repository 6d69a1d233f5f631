"""Answers in several turns: an environment replies to each, until it or a limit ends the conversation.

config.py       the kinds of environments
protocol.py     what an environment is
tool.py         those with a tool: a calculator, Python in the evaluation's sandbox
calculator.py   arithmetic
own.py          a user's own, in a process of its own
own_process.py  that process
open.py         opens one, and what it needs before a run
play.py         conversations, and which of their tokens are the model's
"""
