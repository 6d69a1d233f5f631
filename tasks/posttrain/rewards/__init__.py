"""Rewards of sampled answers, most of them verifiable: computed from the answer and a reference, without a model.

config.py    the kinds of rewards in a profile
verify.py    the verifiable kinds
score.py     all rewards of a profile over a batch of answers, and their weighted sum
watch.py     the KL budget and the held-out reward, which end a run that games its rewards
held_out.py  for every trainer that samples: seeded samples, and rewards on held-out prompts
trainer.py   TRL's GRPOTrainer with all of these
"""
