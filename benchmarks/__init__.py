"""Speed and memory of the package beside its peers. `python -m benchmarks --help`."""
