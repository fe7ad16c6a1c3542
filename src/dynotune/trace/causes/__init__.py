"""What time was lost to: rules on facts, and their ranking."""
