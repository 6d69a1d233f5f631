"""Mathematics in LaTeX, whose symbols the rules for prose should not count."""
