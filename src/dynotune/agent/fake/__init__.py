"""A CUDA device that is not there: programs run on it without memory and work, and what they allocate is noted."""
