"""fastText classifiers for the filter: training by the library, prediction by our own kernel. Not a stage."""
