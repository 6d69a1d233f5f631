"""Text as compiled code sees it: UTF-8 bytes, Unicode tables, hashes of normalised words. No stage of its own."""
