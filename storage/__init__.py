"""Where artifacts live: identity, manifests, the store, refs, and the two shard formats.

Knows nothing of Prefect, of what stages do, or of models: only folders, bytes and digests.
"""
