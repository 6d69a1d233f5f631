"""The recipe of a run: optimizers, learning-rate schedule, precision, and the size of a forward pass."""
