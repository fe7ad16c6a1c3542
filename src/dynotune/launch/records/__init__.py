"""Reading what the agent wrote, and what follows from it for a run."""
