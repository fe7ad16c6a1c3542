"""What the program is like, noted once."""
