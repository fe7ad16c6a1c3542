"""Recipes: written from studies; read, checked and exported as the untrusted input that they are."""
