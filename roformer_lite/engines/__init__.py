"""What computes the answers of a model: torch, or another runtime that reads an exported directory.

An engine stands in the place of the model: it is called with what the tokenizer returns and gives `logits`, or has
`generate` with the arguments of transformers' own. What a task does before and behind is the same for all.
"""

from pathlib import Path

from ..errors import InputError
from ..exporting import EXPORTED_ENGINES, check_libraries

ENGINES = ("torch", *EXPORTED_ENGINES)
_WEIGHTS = ("*.safetensors", "*.bin")


def check_engine_name(engine: str) -> None:
    """Refuse an engine that there is not.

    Raises:
        InputError: naming the option and those there are.
    """
    if engine not in ENGINES:
        raise InputError(f"--engine {engine} is unknown; choose one of {', '.join(ENGINES)}")


def check_engine(engine: str, directory: str, device: str | None = None) -> None:
    """Refuse an engine that cannot read `directory` here, before anything is loaded.

    Raises:
        InputError: naming the option and what would be right.
    """
    exported = [name for name in EXPORTED_ENGINES if (Path(directory) / name).is_dir()]
    if engine == "torch":
        if exported and not any(next(Path(directory).glob(pattern), None) for pattern in _WEIGHTS):
            raise InputError(f"{directory} was exported for {exported[0]}: give --engine {exported[0]}")
        return
    if engine not in exported:
        raise InputError(
            f"{directory} has no folder {engine}: it was not exported for --engine {engine}, as "
            f"`roformer-lite export DIR OUT --format {engine}` does"
        )
    if device not in (None, "cpu"):
        raise InputError(f"--device {device} is for --engine torch; {engine} computes on the CPU here")
    check_libraries(engine)
