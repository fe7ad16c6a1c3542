"""Provide what all of the agent uses: import hooks, the record, errors, and inspection of tensors."""
