"""`python -m benchmarks long-texts --directory DIR --files TEXT …`: measure a language model on
texts that are longer than those of its training.

The files are cut into blocks of `--times` the trained length. The perplexity is given for each part
of a block: for each RoPE scaling of transformers, for windows, and for the block cut into pieces of
the trained length. A causal model is evaluated at every position, and a masked one at tokens that
are masked in the same way for all methods. Nothing is trained.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure
from torch.nn import functional as F
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteForCausalLM, RoFormerLiteForMaskedLM
from hf_roformer_lite.conversion.checkpoints import load_model

from .report import Row, report
from .workload import IGNORED, MASKED_SHARE

LanguageModel = RoFormerLiteForCausalLM | RoFormerLiteForMaskedLM
PIECES = "pieces of the trained length"
# Equal figures give equal files.
STYLE = {"svg.fonttype": "path", "svg.hashsalt": "hf_roformer_lite", "font.size": 8}


@dataclass
class Options:
    directory: str = field(
        metadata={"help": "a causal or masked language model of `roformer-lite train`"}
    )
    files: list[Path] = field(metadata={"help": "UTF-8 text that the model was not trained on"})
    trained_length: int = field(
        default=256, metadata={"help": "the --block_size that it was trained with"}
    )
    times: int = field(
        default=4, metadata={"help": "length of the blocks, as a multiple of the trained length"}
    )
    blocks: int = field(default=64, metadata={"help": "blocks at most, spread over the files"})
    parts: int = field(
        default=8, metadata={"help": "parts of a block, each with its own perplexity"}
    )
    out: Path | None = field(default=None, metadata={"help": "directory of the result, as JSON"})
    plot: Path | None = field(default=None, metadata={"help": "file of a plot of the perplexities"})

    def __post_init__(self) -> None:
        for name in ("trained_length", "times", "blocks", "parts"):
            if getattr(self, name) < 1:
                raise SystemExit(
                    f"{name}={getattr(self, name)} is not possible: it must be at least 1."
                )


def scalings(
    config: RoFormerLiteConfig, trained_length: int, times: int
) -> dict[str, dict[str, Any]]:
    """The fields of the configuration for texts of `times` the trained length, by the name of the
    method."""
    base = {"rope_theta": config.rope_parameters["rope_theta"]}
    whole = {**base, "factor": float(times), "original_max_position_embeddings": trained_length}
    width = int(config.head_dim * config.rope_parameters.get("partial_rotary_factor", 1.0))
    # The slowest pair then turns over the whole length by the same angle as over the trained
    # length.
    larger = base["rope_theta"] * times ** (width / (width - 2))
    reach = trained_length
    if not config.is_decoder:
        reach //= 2
    return {
        "as trained": {},
        "linear": {"rope_parameters": {**base, "rope_type": "linear", "factor": float(times)}},
        # The factor of this method is relative to the length of the text.
        "dynamic": {
            "rope_parameters": {**base, "rope_type": "dynamic", "factor": 1.0},
            "max_position_embeddings": trained_length,
        },
        "yarn": {"rope_parameters": {**whole, "rope_type": "yarn"}},
        "llama3": {
            "rope_parameters": {
                **whole,
                "rope_type": "llama3",
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            }
        },
        "larger rope_theta": {"rope_parameters": {"rope_type": "default", "rope_theta": larger}},
        "windows": {
            "sliding_window": reach,
            "layer_types": ["sliding_attention"] * config.num_hidden_layers,
        },
    }


def with_fields(model: LanguageModel, fields: dict[str, Any]) -> LanguageModel:
    """A model with the same weights and with other `fields` in its configuration."""
    config = type(model.config)(**{**copy.deepcopy(model.config).to_dict(), **fields})
    other = type(model)(config).eval()
    other.load_state_dict(model.state_dict())
    return other


def read_blocks(tokenizer: PreTrainedTokenizerBase, options: Options) -> torch.Tensor:
    """The blocks of all files, `(blocks, times * trained_length)`. The rest of a file that does not
    fill a block is left out."""
    length = options.trained_length * options.times
    found = []
    for path in options.files:
        ids = tokenizer(path.read_text("utf-8"), verbose=False, return_tensors="pt").input_ids[0]
        found.append(ids[: len(ids) // length * length].view(-1, length))
    blocks = torch.cat(found)
    if not len(blocks):
        raise SystemExit(f"files: none has {length} tokens, which a block needs.")
    return blocks[:: -(-len(blocks) // options.blocks)].contiguous()


def masked(blocks: torch.Tensor, mask_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs and labels of masked language modelling, which are the same at every call."""
    is_masked = torch.rand(blocks.shape, generator=torch.Generator().manual_seed(0)) < MASKED_SHARE
    return blocks.masked_fill(is_masked, mask_id), blocks.where(is_masked, IGNORED)


@torch.inference_mode()
def losses(
    model: LanguageModel, inputs: torch.Tensor, labels: torch.Tensor, length: int
) -> torch.Tensor:
    """The loss at each position, `(blocks, L)`, or NaN if nothing is predicted there. The model
    reads `length` tokens at a time."""
    found = []
    pairs = zip(inputs.view(-1, 1, length), labels.view(-1, length), strict=True)
    for ids, targets in pairs:
        logits = model(ids).logits[0].float()  # (length, vocab)
        # Each position predicts the next token, except for the last position of a piece.
        if model.config.is_decoder:
            targets = F.pad(targets[1:], (0, 1), value=IGNORED)
        loss = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="none")
        found.append(loss.masked_fill(targets == IGNORED, torch.nan))
    return torch.stack(found).view(inputs.shape)


def measure(
    model: LanguageModel, tokenizer: PreTrainedTokenizerBase, options: Options
) -> Iterator[Row]:
    """The perplexity of each part of a block, and of all blocks, for each method."""
    inputs = labels = read_blocks(tokenizer, options)
    if not model.config.is_decoder:
        inputs, labels = masked(inputs, tokenizer.mask_token_id)
    length = inputs.shape[1]
    ways = {
        name: (fields, length)
        for name, fields in scalings(model.config, options.trained_length, options.times).items()
    }
    ways[PIECES] = ({}, options.trained_length)
    for name, (fields, at_a_time) in ways.items():
        found = losses(with_fields(model, fields), inputs, labels, at_a_time)
        parts = found.tensor_split(options.parts, dim=1)
        perplexities = [float(loss.nanmean().exp()) for loss in (*parts, found)]
        yield {"method": name, "perplexities": perplexities}


def cells_of(row: Row) -> list[str]:
    return [row["method"], *(f"{perplexity:.4g}" for perplexity in row["perplexities"])]


def draw(rows: list[Row], options: Options) -> None:
    """Draw the perplexity of each part at its middle position. Curves far above all others would
    hide the differences between them, and are left out."""
    length = options.trained_length * options.times
    limit = 4 * min(row["perplexities"][-1] for row in rows)
    parts = torch.arange(length).float().tensor_split(options.parts)
    middles = [float(part.mean()) for part in parts]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.4, 3.6), layout="constrained")
        axis = figure.subplots()
        for row in rows:
            if row["perplexities"][-1] <= limit:
                axis.plot(middles, row["perplexities"][:-1], marker="o", label=row["method"])
        axis.set_ylabel("perplexity")
        axis.set_xlabel(f"position in the text (trained on {options.trained_length} tokens)")
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
        figure.savefig(options.plot, metadata={"Date": None}, facecolor="white")


def main(options: Options) -> None:
    model = load_model(options.directory).eval()
    if not isinstance(model, LanguageModel) or model.config.position_embedding_type != "rope":
        raise SystemExit(
            f"{options.directory} is not possible: it must be a language model with rotary "
            "positions."
        )
    tokenizer = AutoTokenizer.from_pretrained(options.directory)
    columns = ["method", *(f"part {number + 1}" for number in range(options.parts)), "all"]
    rows = measure(model, tokenizer, options)
    result = report("long-texts", options, columns, rows, cells_of)
    if options.plot is not None:
        draw(result["rows"], options)
