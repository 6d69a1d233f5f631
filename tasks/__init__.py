"""What each stage does: a package a stage, named as in the diagram of `flows/pipeline.py`."""

import os

# Arrow's own allocator keeps what it once had (600 MB where 370 are in use); the system's gives it back. Arrow asks
# once, when it is first imported, which is after this.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

# Who says where numba keeps what it compiled: ours of our kernels, its own of others
LOCATORS = "tasks.text.kernel_cache.ByContent,UserProvidedCacheLocator,InTreeCacheLocator,UserWideCacheLocator"
os.environ.setdefault("NUMBA_CACHE_LOCATOR_CLASSES", LOCATORS)
