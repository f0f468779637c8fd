"""The error of everything that a user gives to the commands and to conversion."""


class InputError(ValueError):
    """What the user gave cannot be used; the message says what, where and what would be right."""
