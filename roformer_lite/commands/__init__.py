"""The commands of `roformer-lite`: a module each, with a function `main`."""
