"""Blind votes of people on models' answers, and preferences and win rates from them.

ballot.py   the questions of a voter in their order, and the file of votes
page.py     the page
server.py   the server on this machine that shows it
config.py   the file of votes
stage.py    the stage `votes`: preferences that `dpo` can learn from
results.py  win rates by votes
"""
