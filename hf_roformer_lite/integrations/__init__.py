"""Entries in the tables of other libraries, which make them know the models of this package."""
