"""Commands that look at documents: their story, the rules that judge them, labels for them."""
