"""Relays: what is to be moved, from where to where, and what became of it."""
