"""Saved models: their files, opening them, and writing files that are complete or unchanged."""
