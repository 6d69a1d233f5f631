"""Methods of post-training, a file each."""
