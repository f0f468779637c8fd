"""`roformer-lite convert`: convert a checkpoint of another system into a model of this package, or
the other way round."""

from argparse import Namespace
from pathlib import Path

from hf_roformer_lite.conversion import (
    ConversionError,
    convert_checkpoint,
    export_checkpoint,
    is_ours,
)

from ..command_options import AUTO
from ..errors import InputError


def main(options: Namespace, out: Path) -> None:
    """Run `roformer-lite convert CHECKPOINT OUT`."""
    try:
        if options.target is None and (
            options.source is not None or not is_ours(options.checkpoint)
        ):
            model = convert_checkpoint(options.source or AUTO, options.checkpoint, out)
            print(f"{type(model).__name__}, {model.num_parameters():,} parameters: {out}")
        else:
            family = export_checkpoint(options.target or AUTO, options.checkpoint, out)
            print(f"A checkpoint of {family}: {out}")
    except ConversionError as error:
        raise InputError(str(error)) from error
