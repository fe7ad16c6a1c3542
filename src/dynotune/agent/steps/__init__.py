"""Events of the program, and the steps that are found in them."""
