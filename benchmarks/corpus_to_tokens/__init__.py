"""Text in, token shards out: the data half as one command, beside datatrove's pipeline of the same steps."""
