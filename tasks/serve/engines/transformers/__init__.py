"""transformers as an engine, for what no other one reads: virtual tokens, and architectures that llama.cpp lacks.

engine.py   the server's side: the child and its requests
server.py   the child: a socket, on which each request has a connection
worker.py   the child's thread that computes: who is read, and who goes on
batch.py    the keys and values of answers that go on together
answer.py   one answer: its tokens, their text and its end
sampler.py  draws tokens as a request says
text.py     the text of tokens as they come, up to a stop text

transformers' own continuous batching can't begin with virtual tokens: its pages are filled by reading ids only, and its
forward passes get no cache to put keys and values into.
"""
