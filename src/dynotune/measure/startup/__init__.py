"""Timed starts with caches cold, warm and off."""
