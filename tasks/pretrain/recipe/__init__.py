"""The recipe of a run: optimizers, learning-rate schedule, precision, the size of a forward pass, compiled or not."""
