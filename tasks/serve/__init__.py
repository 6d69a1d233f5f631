"""The last mile: a released model behind an OpenAI-compatible server, guarded and watched.

access/     keys, limits, budgets, and the ledger that counts them
engines/    llama.cpp, vLLM, or a server by its URL, behind one interface
watch/      metrics, audit log, logs, readiness and traces
"""
