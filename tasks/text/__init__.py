"""Text for compiled code: UTF-8 bytes, Unicode tables, hashes of normalised words. Shared by stages; not a stage."""
