"""What post-training is worth, over seeds: `python -m benchmarks.posttrain.NAME`.

peers.py        SFT, DPO and a reward model beside TRL's own trainers: losses and CPU time
preferences.py  DPO and a reward model on pairs that were held out
adapters.py     LoRA beside training all weights
kinds.py        kinds of adapters with as many trained numbers
healing.py      a pruned model healed by distillation, without a teacher, and one of its size from scratch
grpo.py, ppo.py rewards of held-out prompts
packing.py      conversations of uneven lengths, a row for each and packed
seeds.py        options, stages in folders, means over seeds
"""
