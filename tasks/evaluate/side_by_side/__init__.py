"""Models compared by their answers to the same prompts, in pairs.

config.py       the section of a profile
prompts.py      the stage `prompts`: the prompts for all models
answers.py      the stage `answers` of one model or endpoint
generate.py     its child
judgements.py   the stage `judgements`: an endpoint compares two models
judge.py        its child
rewards.py      the stage `answer_rewards`: a reward model's scores of answers
reward.py       its child
items.py        the results of a comparison, prompt by prompt
rates/          win rates and strengths of models
report.py       tables for people
compare.py      the whole comparison, for `evaluate`
"""
