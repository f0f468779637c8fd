"""A saved model in the form of other runtimes."""
