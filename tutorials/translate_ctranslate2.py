"""Translate lines with an exported encoder–decoder: CTranslate2 and a tokenizer, no torch, no
transformers.

    roformer-lite export translator translator-ct2 --format ctranslate2 --quantization int8
    echo "a house" | python tutorials/translate_ctranslate2.py translator-ct2

CTranslate2 reads and writes tokens by their names, of which `tokenizer.json` knows all: the
tokenizer cuts the lines into tokens, with the special ones around them, and joins the tokens that
come back.
"""

import argparse
import sys
from pathlib import Path

from ctranslate2 import Translator
from tokenizers import Tokenizer

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument(
    "directory", help="a model exported by `roformer-lite export --format ctranslate2`"
)
parser.add_argument("--num_beams", type=int, default=1)
parser.add_argument("--max_new_tokens", type=int, default=128)
parser.add_argument(
    "--compute_type",
    default="default",
    help="float32, int8, …; by default as the weights are stored",
)
parser.add_argument("--threads", type=int, default=0, help="0 leaves the choice to CTranslate2")
arguments = parser.parse_args()

directory = Path(arguments.directory)
tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
translator = Translator(
    str(directory / "ctranslate2"),
    compute_type=arguments.compute_type,
    intra_threads=arguments.threads,
)

lines = [line.strip() for line in sys.stdin if line.strip()]
results = translator.translate_batch(
    [line.tokens for line in tokenizer.encode_batch(lines)],
    beam_size=arguments.num_beams,
    max_decoding_length=arguments.max_new_tokens,
    # CTranslate2 sorts the lines by length, and restores their order.
    max_batch_size=32,
)
ids = [[tokenizer.token_to_id(token) for token in result.hypotheses[0]] for result in results]
print(*tokenizer.decode_batch(ids), sep="\n")
