"""Personal data in the metadata of documents."""
