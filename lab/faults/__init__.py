"""Programs with a planted fault, and what each of them plants."""
