"""`roformer-lite export`: a saved model in the form of other runtimes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from ..exporting import FORMATS, GRAPH_FORMATS, QUANTIZATIONS, check_libraries
from ..model_name import check_model_name
from ..output_directory import complete_directory, require_space
from .command_parser import CommandParser

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_GRAPH_SIZE = 2**19  # bytes; more than a graph takes without its weights
_QUANTIZATIONS = "; ".join(f"{name}: {', '.join(kinds)}" for name, kinds in QUANTIZATIONS.items())


@dataclass
class ExportArguments:
    """Options of `roformer-lite export`."""

    format: str = field(default="onnx", metadata={"help": f"What to write: {', '.join(FORMATS)}."})
    quantization: str | None = field(
        default=None,
        metadata={"help": f"How to store the weights, where the format has a choice ({_QUANTIZATIONS})."},
    )

    def __post_init__(self):
        if self.format not in FORMATS:
            raise InputError(f"--format {self.format} is unknown; choose one of {', '.join(FORMATS)}")
        kinds = QUANTIZATIONS.get(self.format)
        if self.quantization is None or self.quantization in (kinds or ()):
            return
        if kinds is None:
            known = ", ".join(QUANTIZATIONS)
            raise InputError(f"--quantization {self.quantization}: --format {self.format} has none; {known} have")
        raise InputError(f"--quantization {self.quantization} is unknown; choose one of {', '.join(kinds)}")


def main(argv: list[str]) -> None:
    """Run `roformer-lite export DIR OUT`."""
    parser = CommandParser(
        "export",
        "Write a saved model in the form of another runtime, with its tokenizer. OUT must not exist yet.",
        [ExportArguments],
        DIR="the model's directory",
        OUT="the directory to write",
    )
    options, paths = parser.parse(argv)
    check_model_name(paths.dir)
    check_libraries(options.format)
    from ..conversion.checkpoints import new_directory
    from ..saved_model import load_model, load_tokenizer

    out = new_directory(paths.out)
    tokenizer = load_tokenizer(paths.dir)
    if tokenizer is None and options.format not in GRAPH_FORMATS:
        raise InputError(f"{paths.dir} has no tokenizer, which --format {options.format} takes its vocabulary from")
    model = load_model(paths.dir).float()  # the precision that every runtime has
    with complete_directory(out) as directory:
        parts = _write(model, tokenizer, directory, options)
        if tokenizer is not None:
            tokenizer.save_pretrained(directory)
    print(f"{type(model).__name__} as {options.format}, {parts}: {out}")


def _write(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase | None",
    directory: Path,
    options: ExportArguments,
) -> str:
    """Fill `directory`; what was written, for the user."""
    if options.format == "ctranslate2":
        from ..exporting import export_ctranslate2

        loader = export_ctranslate2(model, tokenizer, directory, options.quantization)
        return f"to be loaded by ctranslate2.{loader}"
    if options.format == "gguf":
        from ..exporting import export_gguf

        return f"architecture {export_gguf(model, tokenizer, directory, options.quantization)}"
    from ..exporting import export_model

    exported = export_model(model, options.format)
    weights = sum(tensor.nbytes for tensor in model.state_dict().values())
    require_space(directory, len(exported.components) * (weights + _GRAPH_SIZE))
    exported.save_pretrained(directory)
    return ", ".join(exported.components)
