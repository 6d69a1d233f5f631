"""The last mile: a released model behind an OpenAI-compatible server, guarded and watched.

server.py       the process: from the settings to the last answered request
config.py       its settings
open_models.py  opens releases with their engines, and swaps one for another
release.py      a release: checked files, tokenizer, template
served.py       a release with its engine, restarted when that ends
proof.py        whether the engine computes what was released
app.py          the routes, and checks that hold for all of them
exchange.py     one HTTP exchange
service.py      what a request passes, from key to cost
ask.py          a request and its answer, whatever the API
turns.py        the queue before an engine
tools.py        calls of tools in an answer
control.py      commands to a running server
api/            OpenAI's and Anthropic's forms
access/         keys, limits, budgets, and the ledger that counts them
guards/         checks of prompts and of answers while they stream
engines/        llama.cpp, vLLM, or a server by its URL, behind one interface
watch/          metrics, audit log, logs, readiness and traces
pages/          the chat page, the status page, and votes as rows that `download` reads
"""
