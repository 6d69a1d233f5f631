"""fastText classifiers for the filter: trained by the library, applied by our own kernel. Not a stage."""
