"""`roformer-lite serve`: transformers' own OpenAI-compatible server, with the models of this package in it.

`transformers serve` looks for a model's class in transformers' own namespace, even for remote code, and imports no
plugin, so it does not find the classes of this package. This command puts the class there and starts the server.
"""

import sys

from ..errors import InputError
from ..model.lm_heads import RoFormerLiteForCausalLM


def main(argv: list[str]) -> None:
    """Run `roformer-lite serve MODEL`, with every option of `transformers serve`.

    Raises:
        InputError: when what the server needs is not installed.
    """
    try:
        from transformers.cli.transformers import app
        from transformers.utils.import_utils import is_serve_available
    except ImportError as error:
        raise InputError(f"serving needs a transformers with `transformers serve`, such as 5.23: {error}") from error
    if not is_serve_available():
        raise InputError("serving needs its libraries: pip install 'hf_roformer_lite[serve]'")
    # In `sys.modules`, where the server looks too: transformers replaces its own module there while it loads.
    setattr(sys.modules["transformers"], RoFormerLiteForCausalLM.__name__, RoFormerLiteForCausalLM)
    app(["serve", *argv], prog_name="roformer-lite")
