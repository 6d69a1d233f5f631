"""The last mile: a released model behind an OpenAI-compatible server, guarded and watched.

access/     keys, limits, budgets, and the ledger that counts them
engines/    llama.cpp, vLLM, or a server by its URL, behind one interface
<<<<<<< HEAD
watch/      metrics, audit log, logs, readiness and traces
=======
pages/      the chat page, the status page, and votes as rows that `download` reads
>>>>>>> 2645e22253e0a4ab12e0a20a9c499b8f74fc074b
"""
