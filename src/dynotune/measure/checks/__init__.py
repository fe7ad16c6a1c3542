"""Whether a setting leaves the results of the program what they were."""
