"""Options of `roformer-lite prepare`, besides those of the text and of the tokenizer."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from ...errors import InputError, check_number
from ...output_place import check_place


@dataclass
class PrepareArguments:
    """Where the prepared data go, and how they are made."""

    _argument_group_name: ClassVar[str] = "preparation"

    output_dir: str | None = field(default=None, metadata={"help": "Directory of the prepared data. Required."})
    num_proc: int | None = field(
        default=None, metadata={"help": "Processes that tokenise. Default: one for each processor core."}
    )
    shard_size: float = field(default=100.0, metadata={"help": "Tokens in a shard, in millions."})

    def __post_init__(self):
        if not self.output_dir:
            raise InputError("give --output_dir, the directory of the prepared data")
        self.output_dir = check_place("output_dir", self.output_dir)
        if Path(self.output_dir).exists():
            raise InputError(f"--output_dir {self.output_dir} exists; remove it, or choose a new directory")
        check_number("num_proc", self.num_proc, at_least=1, at_most=1024)
        check_number("shard_size", self.shard_size, above=0)

    @property
    def processes(self) -> int:
        """How many processes tokenise."""
        if self.num_proc is not None:
            return self.num_proc
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
