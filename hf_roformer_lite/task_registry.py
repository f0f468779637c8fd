"""The list of tasks: everything that the command line can train and predict."""

from .task_classify import ClassifyTask
from .task_language_model import CausalLMTask, MaskedLMTask
from .task_seq2seq import Seq2SeqTask
from .task_tag import TagTask
from .tasks import Task

TASKS: dict[str, type[Task]] = {
    task.name: task for task in (Seq2SeqTask, MaskedLMTask, CausalLMTask, ClassifyTask, TagTask)
}
