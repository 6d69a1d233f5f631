"""Learning from preferred and rejected answers, over TRL's trainers.

pairs.py      pairs in TRL's DPOTrainer, and pairs without a reference model
labelled.py   single answers with a label in TRL's KTOTrainer
losses.py     the losses of ORPO, CPO, SimPO and KTO, as in their papers
"""
