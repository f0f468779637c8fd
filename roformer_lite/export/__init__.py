"""A saved model in the form of other runtimes. Begin in `commands/export.py`."""
