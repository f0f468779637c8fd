"""The options of one `train` command."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .arguments import CardArguments, DataArguments, ModelArguments
from .resume import training_directory
from .tasks.base import Task
from .trainer_arguments import RoFormerLiteTrainingArguments


@dataclass
class TrainOptions:
    """All options of one `train` command.

    `training.output_dir`, where the Trainer writes its checkpoints, is a directory beside `output_dir`, where the
    finished model is saved. The Trainer never uploads; `push_to_hub` says whether the finished model is uploaded.
    """

    task: Task
    data: DataArguments
    model: ModelArguments
    card: CardArguments
    training: RoFormerLiteTrainingArguments
    command: str
    output_dir: Path = field(init=False)
    push_to_hub: bool = field(init=False)

    def __post_init__(self):
        self.output_dir = Path(self.training.output_dir)
        self.training.output_dir = str(training_directory(self.output_dir))
        self.push_to_hub, self.training.push_to_hub = self.training.push_to_hub, False

    def identity(self) -> dict[str, Any]:
        """The options that must be the same for a training to be continued."""
        training = {name: getattr(self.training, name) for name in ("seed", "max_tokens_per_batch", "ema_decay")}
        return {"task": self.task.name, **asdict(self.data), **asdict(self.model), **training}
