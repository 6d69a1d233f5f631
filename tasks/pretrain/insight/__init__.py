"""Insight into a training run: where its time goes, what its layers do, and a curve while it runs.

In the child, without changing a bit of what is learned:
observe.py     what the loop holds: one object, a few calls a step
clock.py       every second of the loop belongs to one kind of work
layers.py      activations, gradients, weights and updates, layer by layer
probe.py       attention entropy and logits of one row, computed once more
profiler.py    torch's profiler over chosen steps
trackers.py    TensorBoard, Weights & Biases, MLflow, for those who have them

In the stage, without torch:
settings.py    what can't work is refused before anything starts
speed.py       speed.jsonl summed up
page.py        the page that is looked at while it trains, and kept afterwards
looks.py       insight.jsonl, read while it grows
heatmaps.py    layers by steps

What is seen of a run is no part of its artifact, whose digest must be the same for the same run. Figures of the whole
run go to the manifest's facts; files lie beside the artifact, in the store's folder insight/pretrain/KEY.
"""
