"""The choice of the document to keep of a cluster: the condition of its text, and the order of preference."""
