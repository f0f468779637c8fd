"""Entries for the models of this package in the tables of other libraries."""
