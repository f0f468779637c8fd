"""Makes this package known to the Auto classes and pipelines of transformers and to PEFT, when these are imported.

Registering loads torch and the models, which takes seconds, so `import hf_roformer_lite` alone does not. What is to
be registered with a module of another library is registered at once if that module is loaded, and otherwise right
after it is loaded.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

ONE_STACK, TWO_STACKS = "RoFormerLiteConfig", "RoFormerLiteSeq2SeqConfig"
MODEL_TYPES = {ONE_STACK: "roformer_lite", TWO_STACKS: "roformer_lite_seq2seq"}
MODELS: dict[str, dict[str, str]] = {
    "AutoModel": {ONE_STACK: "RoFormerLiteModel", TWO_STACKS: "RoFormerLiteSeq2SeqModel"},
    "AutoModelForMaskedLM": {ONE_STACK: "RoFormerLiteForMaskedLM"},
    "AutoModelForCausalLM": {ONE_STACK: "RoFormerLiteForCausalLM"},
    "AutoModelForSequenceClassification": {ONE_STACK: "RoFormerLiteForSequenceClassification"},
    "AutoModelForTokenClassification": {ONE_STACK: "RoFormerLiteForTokenClassification"},
    "AutoModelForQuestionAnswering": {ONE_STACK: "RoFormerLiteForQuestionAnswering"},
    "AutoModelForMultipleChoice": {ONE_STACK: "RoFormerLiteForMultipleChoice"},
    "AutoModelForSeq2SeqLM": {TWO_STACKS: "RoFormerLiteForConditionalGeneration"},
}

# The private tables of transformers that hold its models by name.
_TABLES = ("_config_mapping", "_reverse_config_mapping", "_model_mapping", "_modules")
_postponed: list[Callable[[], None]] = []


def register_configs() -> None:
    from transformers import AutoConfig

    from .model.configuration_roformer_lite import RoFormerLiteConfig
    from .model.configuration_roformer_lite_seq2seq import RoFormerLiteSeq2SeqConfig

    for config in (RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig):
        AutoConfig.register(config.model_type, config, exist_ok=True)


def register_tokenizers() -> None:
    from transformers import AutoTokenizer

    from .model.configuration_roformer_lite import RoFormerLiteConfig
    from .model.configuration_roformer_lite_seq2seq import RoFormerLiteSeq2SeqConfig
    from .model.tokenization_jieba import RoFormerLiteJiebaTokenizer
    from .model.tokenization_roformer_lite import RoFormerLiteTokenizer

    for config in (RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig):
        for tokenizer in (RoFormerLiteJiebaTokenizer, RoFormerLiteTokenizer):  # the last is the default, all are known
            AutoTokenizer.register(config, tokenizer_class=tokenizer, exist_ok=True)


def register_models() -> None:
    """Enter the models into the Auto classes."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")  # waits for a thread that imports it
    mappings = {name: getattr(getattr(auto, name), "_model_mapping", None) for name in MODELS}
    if all(hasattr(mapping, table) for mapping in mappings.values() for table in _TABLES):
        _register_model_names(mappings)
    else:
        _register_model_classes(auto)


def _register_model_names(mappings: dict[str, Any]) -> None:
    """By name, as transformers enters its own models: nothing is imported before a model is wanted."""
    package = sys.modules[__package__]
    for model_type in MODEL_TYPES.values():
        sys.modules[f"transformers.models.{model_type}"] = package  # where copies of the mappings look
    for auto_class, mapping in mappings.items():
        for config, model in MODELS[auto_class].items():
            model_type = MODEL_TYPES[config]
            mapping._config_mapping[model_type] = config
            mapping._reverse_config_mapping[config] = model_type
            mapping._model_mapping[model_type] = model
            mapping._modules[model_type] = package


def _register_model_classes(auto: ModuleType, may_postpone: bool = True) -> None:
    """By transformers' public method, which takes classes and so imports every model at once.

    The import of one of our own models may be what made transformers load its Auto classes. The rest then cannot be
    imported before that one is, and the registration is postponed to the first use of the package.

    Raises:
        ImportError: when a model cannot be imported then either.
    """
    package = sys.modules[__package__]
    try:
        classes = {name: getattr(package, name) for name in {*MODEL_TYPES, *_names_of_models()}}
    except (ImportError, AttributeError):
        if not may_postpone:
            raise
        _postponed.append(lambda: _register_model_classes(auto, may_postpone=False))
        return
    for auto_class, models in MODELS.items():
        for config, model in models.items():
            getattr(auto, auto_class).register(classes[config], classes[model], exist_ok=True)


def _names_of_models() -> set[str]:
    return {model for models in MODELS.values() for model in models.values()}


def finish_registration() -> None:
    """Run the registrations that a circular import postponed."""
    postponed, _postponed[:] = _postponed[:], []
    for register in postponed:
        register()


def register_pipelines() -> None:
    from .integrations.pipelines import register_pipelines

    register_pipelines()


def register_peft_targets() -> None:
    from .integrations.peft_targets import register_peft_targets

    register_peft_targets()


REGISTRATIONS: dict[str, Callable[[], None]] = {
    "transformers.models.auto.configuration_auto": register_configs,
    "transformers.models.auto.tokenization_auto": register_tokenizers,
    "transformers.models.auto.modeling_auto": register_models,
    "transformers.pipelines": register_pipelines,
    "peft.utils.constants": register_peft_targets,
}


class _LoaderThatRegisters(Loader):
    """The loader of a module of transformers, and then the registration."""

    def __init__(self, loader: Loader, register: Callable[[], None]):
        self.loader, self.register = loader, register

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        self.register()

    def __getattr__(self, name: str) -> Any:  # source, resources and the like
        return getattr(self.loader, name)


class _FinderThatRegisters(MetaPathFinder):
    """Finds the modules of `REGISTRATIONS` where they are, and adds the registration to their loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in REGISTRATIONS:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _LoaderThatRegisters(spec.loader, REGISTRATIONS[fullname])
        return spec


def register_all() -> None:
    """Register now what can be, and the rest as soon as transformers loads its part."""
    sys.meta_path.insert(0, _FinderThatRegisters())
    for module, register in REGISTRATIONS.items():
        if module in sys.modules:
            register()
