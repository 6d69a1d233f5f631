"""The code shared by all post-training methods: TRL's trainers in a child process, with exact resume.

config.py           the settings that every method has
method.py           what a method is
methods/            the methods, one file each
rows/               row forms, one file each
attention/          attention of rows with several conversations
conversations/      what sft adds to TRL's trainer: packed rows, noise
preference/         trainers and losses of the methods that learn from preferences
reference/          log-probabilities of the pairs under the starting model, as an artifact
best_of_n/          the best of several answers, as instructions and pairs
feedback/           preferences that a model gives
prune/              a smaller model, to be healed by further training
merge/              several models that were trained from one base, as one
reward_model/       the reward model
ppo/                proximal policy optimisation
rewards/            rewards of sampled answers, and what learns from them
stage.py            the stage's side: checks the inputs, runs the child, reports
spec.py             the spec that the stage passes to the child
train.py            the child
pair_lengths.py     checks that enough pairs fit the model before it is trained
check.py            refuses runtime settings that can't be honoured before a run starts
arguments.py        training arguments that every method has
batches.py          which rows a batch holds
held_out_change.py  how training changed the loss on held-out rows, with its interval
token_means.py      measures as means over tokens or pairs
engines.py          DDP, DeepSpeed or FSDP, and what each can't do
callback.py         the log, the progress and the markers of checkpoints
checkpoints.py      whole checkpoints, and the one to resume from
"""
