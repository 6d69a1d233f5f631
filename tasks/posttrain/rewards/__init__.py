"""Rewards of sampled answers, most of them verifiable: computed from the answer and a reference, without a model.

config.py            the kinds of rewards in a profile
verify.py            kinds that compute with the answer and the reference
function.py          a user's own function
function_process.py  the process that it runs in
unit_tests.py        programs and their tests, in a sandbox
rubric.py            a judge behind an endpoint
outside.py           what these three need: files in the key, checks, and how they start
environments/        what replies to answers, so that conversations are rewarded
score.py             all rewards of a profile over a batch of answers, and their weighted sum
watch.py             failures, the KL budget and the held-out reward, which end a run
ranks.py             what each of several processes does of a batch of answers
held_out.py          for every trainer that samples: rewards on held-out prompts
trainer.py           TRL's GRPOTrainer with all of these
"""
