"""`roformer-lite convert`: convert a checkpoint of another system into a RoFormerLite model, or
the other way round."""

from pathlib import Path

from hf_roformer_lite.conversion import (
    ConversionError,
    convert_checkpoint,
    export_checkpoint,
    is_ours,
)

from ..baseline.files import copy_answer_files
from ..errors import InputError
from ..output import complete_directory
from .convert_options import AUTO


def main(source: str | None, target: str | None, checkpoint: str, out: Path) -> None:
    """Run `roformer-lite convert CHECKPOINT OUT`.

    Args:
        source: The system that the checkpoint comes from, or `auto`.
        target: The family to convert a RoFormerLite model to, or `auto`.
        checkpoint: The directory of the checkpoint.
        out: The directory to write.
    """
    try:
        with complete_directory(out) as directory:
            if target is None and (source is not None or not is_ours(checkpoint)):
                model = convert_checkpoint(source or AUTO, checkpoint, directory)
                done = f"{type(model).__name__}, {model.num_parameters():,} parameters"
            else:
                family = export_checkpoint(target or AUTO, checkpoint, directory)
                done = f"A checkpoint of {family}"
            copy_answer_files(checkpoint, directory)
    except ConversionError as error:
        raise InputError(str(error)) from error
    print(f"{done}: {out}")
