"""Draw the attention of a trained model, in every layer and head, and its position embeddings.

    roformer-lite train seq2seq --train_file examples/data/dates_train.tsv --size tiny --output_dir
    dates python tutorials/look_inside.py dates "23 August"

It works with every kind of model. An encoder–decoder has three kinds of attention: from the source
to itself, from the target to itself (each token sees only earlier tokens), and from the target to
the source.
"""

import argparse
from pathlib import Path

import matplotlib
import numpy as np
import torch
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

import hf_roformer_lite  # noqa: F401  so that the Auto classes know its models

matplotlib.use("agg")
from matplotlib import pyplot

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model", help="directory of a trained model")
parser.add_argument("text", help="input of the model")
parser.add_argument("--out", default="pictures", help="directory for the pictures")
arguments = parser.parse_args()

# Attention functions such as sdpa never store the probabilities. "eager" does, and returns them on
# request.
is_pair = AutoConfig.from_pretrained(arguments.model).is_encoder_decoder
auto_class = AutoModelForSeq2SeqLM if is_pair else AutoModel
model = auto_class.from_pretrained(arguments.model, attn_implementation="eager").eval()
tokenizer = AutoTokenizer.from_pretrained(arguments.model)
inputs = tokenizer(arguments.text, return_tensors="pt")
if is_pair:
    written = model.generate(**inputs)[0]  # [CLS], the generated tokens, [SEP]
    # The decoder read all tokens but the last when it wrote all but the first.
    inputs["decoder_input_ids"] = written[None, :-1]
with torch.inference_mode():
    # Each attention is a tuple with one tensor (1, heads, Lq, Lk) for each layer.
    outputs = model(**inputs, output_attentions=True)


def tokens_of(ids: torch.Tensor) -> list[str]:
    """The text of every token, with a dot for each space. A byte-level token that is a part of a
    character appears as �."""
    special = dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
    return [
        special.get(token) or tokenizer.decode([token]).replace(" ", "·") for token in ids.tolist()
    ]


def draw_attention(
    attentions: tuple[torch.Tensor, ...], rows: list[str], columns: list[str], title: str
) -> None:
    """A panel for each layer and head. A row shows how its token distributes its attention
    over the columns."""
    layers, heads = len(attentions), attentions[0].shape[1]
    size = (1.0 + heads * (0.9 + 0.24 * len(columns)), 1.2 + layers * (0.9 + 0.24 * len(rows)))
    figure, axes = pyplot.subplots(layers, heads, figsize=size, squeeze=False, layout="constrained")
    for layer, attention in enumerate(attentions):
        for head, probabilities in enumerate(attention[0]):
            axis = axes[layer, head]
            image = axis.imshow(probabilities, cmap="magma_r", vmin=0, vmax=1)
            axis.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=10)
            axis.set_xticks(range(len(columns)), columns, rotation=90, fontsize=9)
            axis.set_yticks(range(len(rows)), rows, fontsize=9)
    figure.suptitle(title, fontsize=12)
    figure.colorbar(image, ax=axes, shrink=0.6, label="attention probability (a row sums to 1)")
    save(figure, title)


def draw_positions(
    positions: int = 64, width: int = 64, base: float = 10000.0
) -> dict[str, np.ndarray]:
    """The angles of both kinds of positions, and the similarity of two positions by distance."""
    # (positions, width / 2)
    angles = np.arange(positions)[:, None] * base ** (-np.arange(0, width, 2) / width)
    tables = {
        # Rotary: channels j and j + width / 2 of every query and key are turned by angle j.
        "rotary: cosine of each pair's angle": np.cos(angles),
        "rotary: sine of each pair's angle": np.sin(angles),
        # Sinusoidal: sine and cosine alternate, and the vector is added to the embedding.
        "sinusoidal: the vector that is added": np.stack(
            (np.sin(angles), np.cos(angles)), -1
        ).reshape(positions, -1),
    }
    figure, axes = pyplot.subplots(2, 2, figsize=(10.5, 8), layout="constrained")
    for axis, (title, table) in zip(axes.flat, tables.items(), strict=False):
        image = axis.imshow(table, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
        channel = "channel" if table.shape[1] == width else "pair of channels"
        axis.set(xlabel=channel, ylabel="position", title=title)
    figure.colorbar(image, ax=axes, shrink=0.6, label="value in the tables")
    # The product of a query and a key that differ only in position depends only on the distance.
    axes[1, 1].plot(np.cos(angles).mean(1), color="#4a8ac6")
    axes[1, 1].set(
        xlabel="distance of two positions",
        ylim=(-0.1, 1.05),
        title="rotary: product of two equal vectors",
    )
    axes[1, 1].grid(alpha=0.3)
    figure.suptitle(f"positions 0 to {positions - 1}, width {width}", fontsize=12)
    save(figure, "positions")
    return tables


def save(figure: pyplot.Figure, title: str) -> None:
    path = Path(arguments.out) / (
        title.partition(":")[0].lower().replace(" ", "_").replace("-", "_") + ".png"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    # Labels do not touch the edge of the picture.
    figure.savefig(path, dpi=90, facecolor="white", bbox_inches="tight", pad_inches=0.15)
    pyplot.close(figure)
    print(path)


source = tokens_of(inputs["input_ids"][0])
if is_pair:
    answer = tokens_of(written)
    steps = [f"{read} → {wrote}" for read, wrote in zip(answer[:-1], answer[1:], strict=True)]
    print(f"{arguments.text} → {tokenizer.decode(written, skip_special_tokens=True)}")
    draw_attention(outputs.encoder_attentions, source, source, "Self-attention of the encoder")
    draw_attention(
        outputs.decoder_attentions,
        steps,
        answer[:-1],
        "Self-attention of the decoder: read → written",
    )
    draw_attention(
        outputs.cross_attentions, steps, source, "Cross-attention: read → written, from the source"
    )
else:
    draw_attention(outputs.attentions, source, source, "Self-attention")
draw_positions()
