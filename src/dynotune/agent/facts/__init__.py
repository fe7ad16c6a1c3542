"""Record facts of the running program, each fact once."""
