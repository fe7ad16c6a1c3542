"""What every part of the agent stands on: import hooks, the record, errors, looks at tensors."""
