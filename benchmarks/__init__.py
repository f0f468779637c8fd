"""Compares the speed and memory of the package with other implementations. `python -m benchmarks`
lists the tasks."""
