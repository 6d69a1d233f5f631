"""The content of artifacts: documents, ledgers, token shards and JSON lines, each written and read in one place."""
