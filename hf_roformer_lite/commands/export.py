"""`roformer-lite export`: a saved model as graphs for other runtimes."""

from dataclasses import dataclass, field

from ..errors import InputError
from ..exporting import FORMATS, check_libraries
from ..model_name import check_model_name
from ..output_directory import complete_directory, require_space
from .command_parser import CommandParser

_GRAPH_SIZE = 2**19  # bytes; more than a graph takes without its weights


@dataclass
class ExportArguments:
    """Options of `roformer-lite export`."""

    format: str = field(default="onnx", metadata={"help": f"What to write: {', '.join(FORMATS)}."})

    def __post_init__(self):
        if self.format not in FORMATS:
            raise InputError(f"--format {self.format} is unknown; choose one of {', '.join(FORMATS)}")


def main(argv: list[str]) -> None:
    """Run `roformer-lite export DIR OUT`."""
    parser = CommandParser(
        "export",
        "Write a saved model as graphs for other runtimes, with its tokenizer. OUT must not exist yet.",
        [ExportArguments],
        DIR="the model's directory",
        OUT="the directory to write",
    )
    options, paths = parser.parse(argv)
    check_model_name(paths.dir)
    check_libraries(options.format)
    from ..conversion.checkpoints import new_directory
    from ..exporting import export_model
    from ..saved_model import load_model, load_tokenizer

    out = new_directory(paths.out)
    tokenizer = load_tokenizer(paths.dir)
    model = load_model(paths.dir).float()  # the precision that every runtime has
    exported = export_model(model, options.format)
    weights = sum(tensor.nbytes for tensor in model.state_dict().values())
    with complete_directory(out) as directory:
        require_space(directory, len(exported.components) * (weights + _GRAPH_SIZE))
        exported.save_pretrained(directory)
        if tokenizer is not None:
            tokenizer.save_pretrained(directory)
    print(f"{type(model).__name__} as {options.format}, {', '.join(exported.components)}: {out}")
