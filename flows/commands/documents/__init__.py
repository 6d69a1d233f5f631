"""Commands about documents: their history, the rules that judge them, and labels for them."""
