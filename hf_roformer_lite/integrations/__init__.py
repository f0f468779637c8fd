"""What other libraries must know of this package."""
