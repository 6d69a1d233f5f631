"""The recipe: optimizers, the learning rate of a step, the numbers that it computes in, the size of a forward pass."""
