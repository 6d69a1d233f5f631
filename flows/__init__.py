"""When and in which order. Thin: no parsing, no tensors."""

import sys
from pathlib import Path

# Prefect loads a flow that was cancelled or has crashed, for its hooks, by a script whose folder comes first on the
# path then. It has a storage.py, which would be taken for our package
sys.path[:] = [folder for folder in sys.path if Path(folder).parts[-2:] != ("prefect", "runner")]
