"""Writes saved models in the formats of other runtimes, for the command in `commands/export.py`."""
