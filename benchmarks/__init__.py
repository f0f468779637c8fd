"""Speed and memory of the package compared with other implementations. `python -m benchmarks` lists
the tasks."""
