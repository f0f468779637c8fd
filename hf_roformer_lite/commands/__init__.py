"""The commands of `roformer-lite` besides training, conversion and export."""
