"""How a model of transformers is computed: each sequence as if it were the only one, and nothing twice.

packed.py         many sequences in one row, with a common beginning only once
decoder.py        the forward pass of LLaMA and its kin on a CPU
greedy.py         their greedy answers, as many at a time as there are places
shared_prefix.py  the common beginning of a batch's prompts, for answers of other models, and for sampled ones
"""
