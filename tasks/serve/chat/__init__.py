"""The answerers of `gristmill chat`.

answerer.py  the interface
engine.py    a GGUF file in llama.cpp's server, as `gristmill serve` runs it
runtime.py   any other format, a whole answer at a time
server.py    a running server with OpenAI's API
"""
