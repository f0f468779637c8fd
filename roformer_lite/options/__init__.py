"""The options of `roformer-lite train`, their parser and the file `run.yaml`.

A value is a word of the command line or a value of a YAML file. `parser.py` converts both to the
type of the option with one function, and an object holds all options of a run.
"""
