"""Data sets from the user's files or from the Hub. Each row names the file and the line that it
comes from."""
