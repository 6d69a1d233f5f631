"""One file a kind of source: what comes with installed packages, local files, Hugging Face data sets."""
