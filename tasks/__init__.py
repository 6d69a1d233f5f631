"""What each stage does: a package a stage, named as in the diagram of `flows/pipeline.py`."""

import os
from pathlib import Path

# Python looks for modules in the current folder first, or in that of a script. In the first a user works, who may have
# a tasks.py, and beside scripts of Prefect's there is a storage.py: processes that we start are to look in neither
os.environ.setdefault("PYTHONSAFEPATH", "1")
CHECKOUT = Path(__file__).parents[1]
if (CHECKOUT / "pyproject.toml").exists() and str(CHECKOUT) not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    # It need not be installed
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(CHECKOUT), os.environ.get("PYTHONPATH"))))

# Arrow's own allocator keeps what it once had (600 MB where 370 are in use); the system's gives it back. Arrow asks
# once, when it is first imported, which is after this.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

# Where numba keeps compiled code: our locator for our kernels, numba's own for everything else
LOCATORS = "tasks.text.kernel_cache.ByContent,UserProvidedCacheLocator,InTreeCacheLocator,UserWideCacheLocator"
os.environ.setdefault("NUMBA_CACHE_LOCATOR_CLASSES", LOCATORS)
