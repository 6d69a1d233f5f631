"""Mathematics in LaTeX, which rules of prose should not count as symbols."""
