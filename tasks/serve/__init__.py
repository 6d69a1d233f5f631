"""The last mile: a released model behind an OpenAI-compatible server, guarded and watched.

engines/    llama.cpp, vLLM, or a server by its URL, behind one interface
pages/      the chat page, the status page, and votes as rows that `download` reads
"""
