"""Blind votes of people on models' answers, and what becomes of them.

ballot.py   what is voted on, in which order, and the file of votes
page.py     the page
server.py   a server on this machine that shows it
config.py   which file of votes
stage.py    the stage `votes`: preferences that `dpo` can learn from
results.py  win rates by votes
"""
