"""Attention, experts and the loss, which each device computes in its own way.

attention.py       what each token may see, and the kernel for that
blocks.py          attention within documents by FlexAttention
exchange.py        attention of tokens that several processes hold
packed_linear.py   linear layers of inference on a CPU, in oneDNN's own order of weights
cross_entropy.py   the output layer's loss with its gradients, without the logits of a batch
experts.py         a router and its experts, in place of a feed-forward layer
grouped.py         products of groups of rows with a matrix each
row_kernels.py     the loss's work on logits between matrix products, compiled on a GPU
virtual_tokens.py  a trained prefix or prompt, as keys and values before those of a text
autocast.py        the precision of products
"""
