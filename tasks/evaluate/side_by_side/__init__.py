"""Models compared by their answers to the same prompts, in pairs.

config.py      what a profile sets
prompts.py     the stage `prompts`: what all are asked
answers.py     the stage `answers` of one model or endpoint
answering.py   its child
judgements.py  the stage `judgements`: an endpoint compares two models
judging.py     its child
rewards.py     the stage `answer_rewards`: what a reward model makes of answers
rewarding.py   its child
items.py       what a comparison comes to, prompt by prompt
rates/         what comparisons say of models
report.py      tables for people
compare.py     what `evaluate` calls
"""
