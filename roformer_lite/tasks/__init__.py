"""The tasks that can be trained, a file each. Begin in `base.py`; `task_arguments.py` has their
options."""
