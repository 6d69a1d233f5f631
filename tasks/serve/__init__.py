"""The last mile: a released model behind an OpenAI-compatible server, guarded and watched.

proof.py    what is served is what was released
engines/    llama.cpp, vLLM, or a server by its URL, behind one interface
"""
