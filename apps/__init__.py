"""The edges people touch: the command line and the viewer."""
