"""Preparing text for language models: tokenised once, into a directory that any number of trainings
read.

The blocks are a data set in the format of `datasets.Dataset.save_to_disk`, which is mapped into
memory: a training reads of them what it learns from, and finds its place again at once.
"""

import hashlib
import json
import shutil
import time
from dataclasses import asdict
from pathlib import Path

from datasets import disable_progress_bars

from hf_roformer_lite.version import __version__

from ..output import complete_directory, note_files
from ..tasks.base import Task
from ..tasks.task_arguments import PREPARED_FILE
from ..train.options import TokenizerArguments
from ..train.tokenizers import pretrained_tokenizer, set_up_tokenizer, train_tokenizer
from .splits import load_splits

TOKENIZER_FOLDER = "tokenizer"


def prepare(task: Task, asked: TokenizerArguments, output_dir: Path) -> None:
    """Tokenise the training data of `task` into `output_dir`, which appears when all of it is
    there.

    Args:
        task: Masked or causal language modelling, with the options of the data.
        asked: Which tokenizer.
        output_dir: A new directory.

    Raises:
        InputError: about data and tokenizer, and when the disk is full.
    """
    disable_progress_bars()
    started = time.monotonic()
    with complete_directory(output_dir, "the prepared data") as folder:
        rows = load_splits(task, task.args, folder / "cache", seed=0)
        if asked.tokenizer:
            tokenizer = pretrained_tokenizer(asked.tokenizer)
        else:
            tokenizer = train_tokenizer(task.data.texts(rows["train"]), asked)
        set_up_tokenizer(tokenizer, task).save_pretrained(folder / TOKENIZER_FOLDER)
        encoded = task.data.encode(rows["train"], training=False)
        encoded.select_columns(["input_ids"]).save_to_disk(folder / "train")
        held_out = [split for split in rows if split != "train"]
        for split in held_out:
            rows[split].save_to_disk(folder / split)
        tokens = sum(task.data.lengths(encoded))
        content = {
            "task": task.name,
            "tokenizer": hashlib.sha256(
                json.dumps(sorted(tokenizer.get_vocab().items())).encode()
            ).hexdigest(),
            "held_out": held_out,
            "blocks": len(encoded),
            "tokens": tokens,
            "options": {**asdict(task.args), "block_size": task.data.max_length},
            "version": __version__,
        }
        (folder / PREPARED_FILE).write_text(
            json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8"
        )
        shutil.rmtree(folder / "cache")
        note_files(folder)
    seconds = time.monotonic() - started
    print(f"{tokens:,} tokens in {len(encoded):,} blocks, in {seconds:.1f} seconds: {output_dir}")
    print(f"Train with it: roformer-lite train {task.name} --prepared {output_dir} --output_dir …")
