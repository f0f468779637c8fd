"""Translate lines with an exported encoder–decoder: onnxruntime and a tokenizer, no torch, no
transformers.

    roformer-lite export translator translator-onnx
    echo "a house" | python tutorials/translate_onnx.py translator-onnx

There are three graphs: the encoder reads the source, `prefill` the start token, and `decode` one
more token. Each call of the last two returns the keys and values of all tokens so far, and the next
call takes them: the names of outputs and inputs differ only in their prefix, `output.` or `input.`.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from onnxruntime import InferenceSession
from tokenizers import Tokenizer

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("directory", help="a model exported by `roformer-lite export`")
parser.add_argument("--max_new_tokens", type=int, default=128)
arguments = parser.parse_args()

directory = Path(arguments.directory)
config = json.loads((directory / "config.json").read_text("utf-8"))
tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
tokenizer.enable_padding(pad_id=config["pad_token_id"])
graphs = {
    name: InferenceSession(directory / "onnx" / f"{name}.onnx")
    for name in ("encoder", "prefill", "decode")
}


def run(name: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Call a graph with the entries of `inputs` that it accepts."""
    wanted = [place.name for place in graphs[name].get_inputs()]
    named = {place: place.removeprefix("input.") for place in wanted}
    outputs = graphs[name].run(None, {place: inputs[key] for place, key in named.items()})
    return {
        place.name.removeprefix("output."): value
        for place, value in zip(graphs[name].get_outputs(), outputs, strict=True)
    }


def translate(lines: list[str]) -> list[str]:
    """Greedy decoding: take the likeliest token each time, until every line has ended."""
    encoded = tokenizer.encode_batch(lines)
    mask = np.array([line.attention_mask for line in encoded])
    source = run(
        "encoder", {"input_ids": np.array([line.ids for line in encoded]), "attention_mask": mask}
    )
    state = {
        "attention_mask": mask,
        "encoder_outputs.last_hidden_state": source["last_hidden_state"],
    }
    state["decoder_input_ids"] = np.full((len(lines), 1), config["decoder_start_token_id"])
    tokens, ended = [], np.zeros((len(lines), 1), dtype=bool)
    for step in range(arguments.max_new_tokens):
        outputs = run("decode" if step else "prefill", state)
        chosen = outputs["logits"][:, -1:].argmax(-1)
        tokens.append(np.where(ended, config["pad_token_id"], chosen))
        ended |= chosen == config["eos_token_id"]
        if ended.all():
            break
        # Of the outputs, `decode` takes the keys and values of all tokens so far.
        state |= {**outputs, "decoder_input_ids": chosen}
    return tokenizer.decode_batch(np.concatenate(tokens, 1).tolist())


lines = [line.strip() for line in sys.stdin if line.strip()]
for start in range(0, len(lines), 32):
    print(*translate(lines[start : start + 32]), sep="\n")
