"""Record facts of the program, each once."""
