"""The list of tasks: everything that the command line can train and predict."""

from .base import Task
from .classify import ClassifyTask
from .language_model import CausalLMTask, MaskedLMTask
from .seq2seq import Seq2SeqTask
from .tag import TagTask

TASKS: dict[str, type[Task]] = {
    task.name: task for task in (Seq2SeqTask, MaskedLMTask, CausalLMTask, ClassifyTask, TagTask)
}
