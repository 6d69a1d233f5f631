"""Named models besides the links of the chain: third-party yardsticks, links in a format of a release, endpoints.

config.py           which models
models.py           each as an artifact that is measured like a link
quantized_model.py  the stage that writes a link in another format
quantize.py         its child
gguf.py             models that llama.cpp runs
hosted_model.py     the stage of an endpoint: an artifact with its address and model
"""
