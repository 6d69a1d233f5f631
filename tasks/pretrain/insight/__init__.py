"""Insight into a run: where its time goes, what its layers do, and a live curve.

In the child, without changing a bit of the result:
observe.py        the loop's interface: one object, a few calls per step, and a clock
stragglers.py     names the hosts that all others wait for
layers.py         activations, gradients, weights and updates of each layer
probe.py          attention entropy and logits of one row, in an extra forward pass
profiler.py       torch's profiler over chosen steps

In the stage, without torch:
settings.py       refuses settings that can't work before anything starts
speed.py          summarises speed.jsonl
page.py           the live page
layer_history.py  reads insight.jsonl while it grows
heatmaps.py       heatmaps of layers by steps

None of it is part of the artifact, whose digest must be the same for the same run. Figures of the whole run go to the
manifest's facts. Files are beside the artifact, in the store's folder insight/pretrain/KEY.
"""
