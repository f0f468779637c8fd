"""`roformer-lite`: the command line. Every sub-command is imported only when it is called for."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence

from .errors import InputError


def _demo(argv: list[str]) -> None:
    from .commands.demo import main

    main(argv)


def _train(argv: list[str]) -> None:
    from .training.tasks import TASKS
    from .training.train import parse_options, train

    parser = argparse.ArgumentParser(
        prog="roformer-lite train",
        description="Train a model. `roformer-lite train TASK --help` lists the options.",
        epilog="tasks: " + "; ".join(f"{task.name} ({task.summary})" for task in TASKS.values()),
    )
    parser.add_argument("task", choices=list(TASKS))
    task = parser.parse_args(argv[:1]).task
    train(parse_options(task, argv[1:]))


def _predict(argv: list[str]) -> None:
    from .commands.predict import main

    main(argv)


def _bundle(argv: list[str]) -> None:
    from .commands.bundle import main

    main(argv)


def _convert(argv: list[str]) -> None:
    from .conversion.command import convert_main

    convert_main(argv)


def _verify(argv: list[str]) -> None:
    from .conversion.command import verify_main

    verify_main(argv)


def _export(argv: list[str]) -> None:
    from .exporting.graphs import main

    main(argv)


def _serve(argv: list[str]) -> None:
    from .commands.serve import main

    main(argv)


COMMANDS: dict[str, tuple[Callable[[list[str]], None], str]] = {
    "demo": (_demo, "train, evaluate and save a small model on data made by the package itself; nothing to download"),
    "train": (_train, "train a model on your own data: seq2seq, mlm, causal, classify or tag"),
    "predict": (_predict, "read lines, write the answers of a trained model"),
    "bundle": (_bundle, "put the package's code beside a saved model, for those who have not installed it"),
    "convert": (_convert, "bring a checkpoint of another system into this package, or one of this package there"),
    "export": (_export, "write a trained model for other runtimes: ONNX or torch.export"),
    "serve": (_serve, "answer requests over HTTP with a causal model, as `transformers serve` does"),
    "verify": (_verify, "hold a checkpoint against its conversion: the same numbers"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `roformer-lite`; returns the exit status. Bad input ends with a message and status 2, no traceback."""
    width = max(map(len, COMMANDS))
    parser = argparse.ArgumentParser(
        prog="roformer-lite",
        description="Train and use compact Transformers with rotary positions.",
        epilog="commands:\n" + "\n".join(f"  {name:{width}}  {text}" for name, (_, text) in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=list(COMMANDS), metavar="COMMAND")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="`roformer-lite COMMAND --help` lists them")
    arguments = parser.parse_args(argv)
    logging.basicConfig(format="%(levelname)s: %(message)s")
    try:
        COMMANDS[arguments.command][0](arguments.options)
    except InputError as error:
        print(f"roformer-lite {arguments.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted; a training goes on from its last checkpoint with the same command", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read our output, `head` for example, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
