"""The kinds of sources: text of installed packages, local files, data sets of the Hugging Face hub."""
