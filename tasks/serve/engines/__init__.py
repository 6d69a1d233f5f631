"""Engines that serve a model, behind one interface. None of the inference is ours.

protocol.py     the interface: token ids in, pieces of text out
process.py      an engine's program as a child behind a socket
llama_cpp.py    llama.cpp as a child
grammars.py     what a request may ask of llama.cpp by a schema or a grammar
transformers/   transformers as a child, for what the others don't read
client.py       requests and streams of events over HTTP
transport.py    HTTP to engines nearby, at a third of the usual cost for each token
completions.py  an OpenAI-compatible server's `/v1/completions` as an engine
vllm.py         vLLM as a child
group.py        ends a command's descendants with it, and with the process that started it
openai_url.py   a server by its URL
"""
