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
        if target is None and (source is not None or not is_ours(checkpoint)):
            model = convert_checkpoint(source or AUTO, checkpoint, out)
            print(f"{type(model).__name__}, {model.num_parameters():,} parameters: {out}")
        else:
            family = export_checkpoint(target or AUTO, checkpoint, out)
            print(f"A checkpoint of {family}: {out}")
    except ConversionError as error:
        raise InputError(str(error)) from error
    copy_answer_files(checkpoint, out)
