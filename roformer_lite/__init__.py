"""The program `roformer-lite`. Nothing is imported here: a command imports what it needs when it is
given."""
