"""`roformer-lite verify`: check that a checkpoint and its conversion compute the same numbers."""

from hf_roformer_lite.conversion import open_checkpoint, source_of, verify

from ..errors import InputError
from ..saved.saved_model import naming
from .convert_options import AUTO


def main(source: str, checkpoint: str) -> None:
    """Run `roformer-lite verify CHECKPOINT`.

    Args:
        source: The system of the checkpoint, or `auto`.
        checkpoint: Its directory.

    Raises:
        InputError: if the outputs differ by more than the tolerance.
    """
    with naming(checkpoint):
        state_dict, config = open_checkpoint(checkpoint)
        if source == AUTO:
            source = source_of(checkpoint, config)
        differences = verify(source, state_dict, config)
    print("\n".join(map(str, differences)))
    if not all(difference.is_within for difference in differences):
        raise InputError(
            f"{checkpoint}: the conversion differs from its source by more than the tolerance"
        )
