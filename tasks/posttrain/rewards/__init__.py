"""Rewards of sampled answers, most of them verifiable: computed from the answer and a reference, by no model.

config.py    the kinds of rewards, as a profile has them
verify.py    what each verifiable kind gives an answer
score.py     all rewards of a profile over a batch of answers, and their weighted sum
watch.py     the KL budget and the held-out reward, which end a run that games its rewards
sample.py    the seed of samples
held_out.py  rewards on held-out prompts along a training
trainer.py   TRL's GRPOTrainer with all of these
"""
