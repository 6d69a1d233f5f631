"""What post-training methods share: TRL's trainers in a child process, with exact resume.

config.py       the settings that every method has
method.py       what a method is
methods/        the methods, one file each
rows/           row forms, one file each
conversations/  what sft adds to TRL's trainer: packed rows, noise
adapters/       adapters over a base model
preference/     trainers and losses of the methods that learn from preferences
reference/      what the model that they start from says of the pairs, as an artifact
feedback/       preferences that a model gives
prune/          a smaller model to be healed
reward_model/          the reward model
ppo/            proximal policy optimisation
rewards/        rewards of sampled answers, and what learns from them
stage.py        the stage's side: checks the inputs, runs the child, reports
spec.py         what the child is told
train.py        the child
pair_lengths.py          whether enough pairs fit the model, asked before it is trained
check.py        what can't be honoured of the runtime, refused before a run starts
arguments.py    training arguments that every method has
batches.py      which rows a batch holds
held_out_change.py       what training changed on the held-out rows, with its interval
token_means.py        measures as means over tokens or pairs
engines.py      DDP, DeepSpeed or FSDP, and what each can't do
callback.py     the log, the progress and the markers of checkpoints
checkpoints.py  whole checkpoints, and the one to resume from
"""
