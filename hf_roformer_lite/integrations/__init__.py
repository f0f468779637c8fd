"""What other libraries are told about this package."""
