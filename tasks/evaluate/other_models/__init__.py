"""Models by name, beside the links of the chain: others' as a yardstick, links in a format of a release, endpoints.

config.py     which models
models.py     each as an artifact that is measured like a link
quantized.py  the stage that writes a link in another format; quantizing.py is its child
gguf.py       those that llama.cpp runs
hosted.py     the stage of an endpoint: an artifact that says whom to ask
"""
