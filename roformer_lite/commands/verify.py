"""`roformer-lite verify`: check that a checkpoint and its conversion compute the same numbers."""

from argparse import Namespace

from hf_roformer_lite.conversion import open_checkpoint, source_of, verify

from ..command_options import AUTO
from ..errors import InputError
from ..saved_model import naming


def main(options: Namespace) -> None:
    """Run `roformer-lite verify CHECKPOINT`.

    Raises:
        InputError: if the outputs differ by more than the tolerance.
    """
    with naming(options.checkpoint):
        state_dict, config = open_checkpoint(options.checkpoint)
        source = source_of(options.checkpoint, config) if options.source == AUTO else options.source
        differences = verify(source, state_dict, config, options.seed)
    print("\n".join(map(str, differences)))
    if not all(difference.is_within for difference in differences):
        raise InputError(
            f"{options.checkpoint}: the conversion differs from its source by more than the "
            "tolerance"
        )
