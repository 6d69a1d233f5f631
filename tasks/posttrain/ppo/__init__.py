"""Proximal policy optimisation, which TRL no longer has: a policy, a critic, and answers learned from repeatedly.

config.py     its settings
equations.py  estimates, advantages and losses, each from its source
rollout.py    answers of the policy with all that their losses need
trainer.py    transformers' Trainer over rollouts, resumed with the one that it is in
"""
