"""The class behind each Auto class, and bundles: saved models that carry their own code and open
without this package.

The code of a bundle lies next to the weights. Transformers runs it with `trust_remote_code=True`,
and finds the classes by the `auto_map` of config.json and tokenizer_config.json.
"""

import re
from pathlib import Path
from typing import Any

HEADS = "heads_roformer_lite"
SEQ2SEQ = "modeling_roformer_lite_seq2seq"
REFERENCE_LAYERS = "reference_layers"
# The class behind each Auto class, by model type. These are registered, and written into the
# `auto_map` of a config.json.
AUTO_CLASSES: dict[str, dict[str, str]] = {
    "roformer_lite": {
        "AutoConfig": "RoFormerLiteConfig",
        "AutoModel": "RoFormerLiteModel",
        "AutoModelForMaskedLM": "RoFormerLiteForMaskedLM",
        "AutoModelForCausalLM": "RoFormerLiteForCausalLM",
        "AutoModelForSequenceClassification": "RoFormerLiteForSequenceClassification",
        "AutoModelForTokenClassification": "RoFormerLiteForTokenClassification",
        "AutoModelForQuestionAnswering": "RoFormerLiteForQuestionAnswering",
        "AutoModelForMultipleChoice": "RoFormerLiteForMultipleChoice",
    },
    "roformer_lite_seq2seq": {
        "AutoConfig": "RoFormerLiteSeq2SeqConfig",
        "AutoModel": "RoFormerLiteSeq2SeqModel",
        "AutoModelForSeq2SeqLM": "RoFormerLiteForConditionalGeneration",
    },
}

# The two kinds of relative imports in this code: `from .x import` and `from ..folder.x import`.
RELATIVE_IMPORT = re.compile(r"^(\s*from )\.(?:\.(\w+)\.)?(\w+)(?= import )", re.MULTILINE)


def code_of_bundle(main: Path) -> dict[str, str]:
    """Collect the code of `main` and of all files that it needs, by the names of the files.

    Transformers copies the files of one folder only, and follows nothing but `from .x import y`.
    A bundle is therefore flat: files of a sibling folder lie next to the others, and
    `from ..folder.x import y` becomes `from .x import y`.
    """
    code: dict[str, str] = {}
    waiting = [main]
    while waiting:
        path = waiting.pop()
        if path.name in code:
            continue
        text = path.read_text(encoding="utf-8")
        code[path.name] = RELATIVE_IMPORT.sub(r"\1.\3", text)
        for _, folder, module in RELATIVE_IMPORT.findall(text):
            directory = path.parent
            if folder:
                directory = directory.parent / folder
            waiting.append(directory / f"{module}.py")
    return code


class RemoteCode:
    """Gives configurations and models the argument `remote_code` of `save_pretrained`.

    `True` saves a bundle and `False` saves none. Without the argument, a model that was opened from
    a bundle is saved as a bundle again. The property `remote_code` reads and sets the same choice,
    also for `push_to_hub` and the Trainer.
    All classes of a bundle are found in one of its files, which imports the others, so that a
    bundle always has the code of every class.
    """

    def configuration(self) -> Any:
        """The configuration of a model, or the configuration itself."""
        return getattr(self, "config", self)

    def auto_map_holder(self) -> dict[str, Any]:
        """The dictionary that has the `auto_map` of a bundle."""
        return vars(self.configuration())

    def file_of_classes(self) -> str:
        """The name, without `.py`, of the file in which a bundle has all its classes."""
        return self.configuration().file_of_classes()

    def classes(self) -> dict[str, Any]:
        """The `auto_map` of a bundle: the "file.Class" behind each Auto class."""
        file = self.file_of_classes()
        names = AUTO_CLASSES[self.configuration().model_type]
        return {auto: f"{file}.{name}" for auto, name in names.items()}

    @property
    def remote_code(self) -> bool:
        return self.auto_map_holder().get("auto_map") is not None

    @remote_code.setter
    def remote_code(self, value: bool) -> None:
        holder = self.auto_map_holder()
        if not value:
            holder.pop("auto_map", None)
            return
        # The bundle may come from an older version, so our own classes are named again. Classes of
        # others, derived from them, keep their names.
        others = {}
        for auto, path in (holder.get("auto_map") or {}).items():
            if isinstance(path, str) and ".RoFormerLite" not in path:
                others[auto] = path
        holder["auto_map"] = {**self.classes(), **others}

    def save_pretrained(
        self,
        save_directory: Any,
        *args: Any,
        remote_code: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        if remote_code is None:
            remote_code = self.remote_code
        self.remote_code = remote_code
        if type(self).__module__.rpartition(".")[0] == __package__:
            # Transformers sets this private attribute when it opens a bundle. It would then replace
            # the `auto_map` by one that names a single class.
            vars(self)["_auto_class"] = None
        if remote_code and kwargs.get("is_main_process", True):
            self.write_code(Path(save_directory))
        # A type checker cannot know that the next base class, one of transformers, has the method.
        return super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]

    def write_code(self, directory: Path) -> None:
        """Write the files of a bundle's code into `directory`, which is made if necessary."""
        directory.mkdir(parents=True, exist_ok=True)
        main = Path(__file__).with_name(f"{self.file_of_classes()}.py")
        for name, text in code_of_bundle(main).items():
            (directory / name).write_text(text, encoding="utf-8")


class RemoteCodeTokenizer(RemoteCode):
    """`RemoteCode` for tokenizers, whose `auto_map` is in tokenizer_config.json."""

    init_kwargs: dict[str, Any]

    def auto_map_holder(self) -> dict[str, Any]:
        return self.init_kwargs

    def file_of_classes(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    def classes(self) -> dict[str, Any]:
        # The list has an entry for a slow and one for a fast tokenizer. Transformers looks for a
        # class of this kind in the first one.
        name = f"{self.file_of_classes()}.{type(self).__name__}"
        return {"AutoTokenizer": [name, None]}
