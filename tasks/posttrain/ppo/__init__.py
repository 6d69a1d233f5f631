"""Proximal policy optimisation, which TRL no longer has: a policy, a critic, and rollouts learned from repeatedly.

config.py     the settings
equations.py  estimates, advantages and losses, each from its source
policy.py     the policy with its critic, in one forward pass
rollout.py    answers of the policy with all inputs of their losses
trainer.py    transformers' Trainer over rollouts, which resumes within a rollout too
"""
