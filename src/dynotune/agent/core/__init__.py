"""Provide the base of the agent's parts: import hooks, the record, errors, and inspection of tensors."""
