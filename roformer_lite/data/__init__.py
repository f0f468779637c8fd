"""Data sets from a person's files or from the Hub: rows with the file and line that each comes
from."""
