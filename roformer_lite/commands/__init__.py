"""The commands of `roformer-lite`. Each is a module with a function `main`."""
