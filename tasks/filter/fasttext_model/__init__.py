"""fastText classifiers for the filter: training by the library, prediction by a kernel of our own. No stage itself."""
