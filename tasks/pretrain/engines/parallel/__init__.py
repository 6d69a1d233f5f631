"""One copy of a model, or one row of tokens, divided among processes: layers are replaced from outside.

tensor.py       tensor parallelism: heads and feed-forward rows
vocabulary.py   its embedding and output layer
context.py      context parallelism: tokens
collectives.py  sums over processes, with gradients
"""
