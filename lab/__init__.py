"""What benchmarks and tests share; it is not part of what is published. Neither imports the other."""
