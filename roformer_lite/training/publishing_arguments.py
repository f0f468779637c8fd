"""Options on how a finished model is published: its card, and its way to the Hub."""

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass
class CardArguments:
    """What the model card says besides the measured results."""

    _argument_group_name: ClassVar[str] = "model card"

    title: str | None = field(
        default=None, metadata={"help": "Title of the model card. Default: name of the directory."}
    )
    language: list[str] = field(default_factory=list, metadata={"help": "Language codes, for example en de."})
    license: str | None = field(default=None, metadata={"help": "Licence of the model, for example apache-2.0."})
    dataset_title: str | None = field(
        default=None, metadata={"help": "What the card calls the data. Default: the file names."}
    )
    datasets: list[str] = field(
        default_factory=list, metadata={"help": "Names of the data on the Hub, where the files are a copy of them."}
    )
    limitations: str | None = field(
        default=None, metadata={"help": "A sentence on what the model should not be used for."}
    )
    card_example: bool = field(
        default=False,
        metadata={"help": "Show a row of the validation data in the card's code, instead of a made-up one."},
    )


@dataclass
class HubArguments:
    """How the finished model gets to the Hub, mostly fields of transformers' `TrainingArguments`."""

    _argument_group_name: ClassVar[str] = "Hub"

    push_to_hub: bool = field(default=False, metadata={"help": "Upload the finished model to the Hub."})
    hub_model_id: str | None = field(
        default=None, metadata={"help": "Repository to upload to. Default: name of the directory, under your account."}
    )
    hub_private_repo: bool | None = field(default=None, metadata={"help": "Make a new repository private."})
    hub_revision: str | None = field(default=None, metadata={"help": "Branch to upload to. Default: main."})
    hub_token: str | None = field(
        default=None, metadata={"help": "Token to upload with. Default: that of `hf auth login`."}
    )
    remote_code: bool = field(
        default=False,
        metadata={"help": "Save the package's code with the model, for people who have not installed the package."},
    )
