"""`roformer-lite convert`: convert a checkpoint of another system into a RoFormerLite model, or
the other way round."""

from pathlib import Path

from hf_roformer_lite.conversion import (
    ConversionError,
    convert_checkpoint,
    export_checkpoint,
    is_ours,
)

from ..errors import InputError
from .convert_options import AUTO, ConvertArguments


def main(options: ConvertArguments, checkpoint: str, out: Path) -> None:
    """Run `roformer-lite convert CHECKPOINT OUT`."""
    try:
        if options.target is None and (options.source is not None or not is_ours(checkpoint)):
            model = convert_checkpoint(options.source or AUTO, checkpoint, out)
            print(f"{type(model).__name__}, {model.num_parameters():,} parameters: {out}")
        else:
            family = export_checkpoint(options.target or AUTO, checkpoint, out)
            print(f"A checkpoint of {family}: {out}")
    except ConversionError as error:
        raise InputError(str(error)) from error
