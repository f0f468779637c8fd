"""The version of the package, which can be read without importing it."""

__version__ = "0.3.0"
