"""Who may ask a server, how often, and for how much: keys, limits, budgets, and the ledger that counts them.

config.py           limits of a key and of the server
keys.py             the form of keys, and their digests
quota.py            whether a request fits a key's limits, as arithmetic
ledger.py           the interface of ledgers
sqlite_ledger.py    the ledger in a file that the processes of one host share
redis_ledger.py     the ledger in Redis, for several hosts
open.py             opens one of the two
gate.py             admits a request and settles it
"""

from tasks.serve.access.config import Limits, LimitsConfig
from tasks.serve.access.gate import Access, Admission
from tasks.serve.access.quota import AccessRefused, Price

__all__ = ["Access", "AccessRefused", "Admission", "Limits", "LimitsConfig", "Price"]
