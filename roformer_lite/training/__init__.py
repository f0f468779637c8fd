"""Trains models, from the user's files to a finished model directory."""
