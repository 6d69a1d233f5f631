"""The storage of artifacts: identity, manifests, the store, refs, and the two shard formats.

It knows nothing about Prefect, stages or models: only folders, bytes and digests.
"""
