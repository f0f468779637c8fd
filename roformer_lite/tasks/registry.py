"""All tasks by name. This module imports torch; `task_arguments.py`, which has their options, does
not."""

from .base import Task
from .classify import ClassifyTask
from .embed import EmbedTask
from .language_model import CausalLMTask, MaskedLMTask
from .rerank import RerankTask
from .seq2seq import Seq2SeqTask
from .tag import TagTask

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        Seq2SeqTask,
        MaskedLMTask,
        CausalLMTask,
        ClassifyTask,
        TagTask,
        EmbedTask,
        RerankTask,
    )
}
