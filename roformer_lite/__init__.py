"""The program `roformer-lite`. Nothing is imported here, so that a command loads only the modules
it needs."""
