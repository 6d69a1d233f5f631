"""What is computed in other ways on other devices: attention and the loss.

attention.py      what each token may see, and the kernel for that
cross_entropy.py  the output layer's loss with its gradients, without the logits of a batch
row_kernels.py    what the loss does to logits between products, compiled on a GPU
autocast.py       the precision of products
"""
