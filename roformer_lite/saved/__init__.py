"""Saved models: their files, and opening them."""
