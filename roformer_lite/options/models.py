"""Options of the commands that run a saved model."""

from dataclasses import dataclass

# The help text of an argument that is a saved model.
MODEL_HELP = "the model's directory, or its name on the Hub"
# The seed of `predict` and of `app`.
SEED = 42


@dataclass(frozen=True)
class DeviceArguments:
    """The device of a model.

    Args:
        device: cpu, cuda, cuda:1 … Default: cuda if there is one. An exported model needs the CPU.
    """

    device: str | None = None
