"""A CUDA device that is not there: the program runs on it without memory and without work, and its allocations are noted."""
