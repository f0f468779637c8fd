"""The blocks of code that README and docs show, and how each of them is run."""

import multiprocessing
import os
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from conftest import ROOT
from fresh_process import printed_by
from saved_models import save_model
from tiny_models import tiny_model
from transformers import (
    BartForConditionalGeneration,
    BertForMaskedLM,
    BertForSequenceClassification,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from hf_roformer_lite import RoFormerLiteTokenizer

PROGRAM = "from roformer_lite.cli import main; assert main() == 0"
PROCESSES = multiprocessing.get_context("forkserver")
LIBRARIES = "torch transformers.trainer datasets sentence_transformers scipy.stats".split()
PROCESSES.set_forkserver_preload(LIBRARIES)
# Blocks with these words are not run here. They prepare a machine, need several machines or the
# Hub, or ask a server, as test_serving.py and test_app.py do.
RUN_ELSEWHERE = ("pip install", "--machine_rank", '"me/', "curl", "gradio_client")
BLOCK = re.compile(
    r"^```(\w+)\n(.*?)^```$(?:\s*(?:It prints:\s*)?^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A block of code, and the output that the page shows for it.

    The output stands below the block, or in comments behind its calls of `print`."""

    page: Path
    line: int
    language: str
    code: str
    printed: str | None

    @property
    def runs_here(self) -> bool:
        if self.language not in ("python", "bash"):
            return False
        return not any(mark in self.code for mark in RUN_ELSEWHERE)

    def __str__(self) -> str:
        return f"{self.page.stem}-{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    blocks = []
    for found in BLOCK.finditer(text):
        language, code, printed = found.groups()
        if comments := re.findall(r"^print\(.*\)  # (.*\n)", code, re.MULTILINE):
            printed = "".join(comments)
        line = text.count("\n", 0, found.start()) + 1
        blocks.append(Block(page, line, language, code, printed))
    return blocks


def write_examples(folder: Path) -> None:
    """Write the files that the pages name, and tiny models with random weights to directories
    named like those of the Hub. transformers looks for a directory before it asks the Hub."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    lines = [f"line {n} says that {n} is a number\n" for n in range(60)]
    (folder / "text.txt").write_text("".join(lines), "utf-8")
    data = folder / "examples" / "data"
    shutil.copytree(ROOT / "examples" / "data", data)
    # No block is compared by what it learns from these files, so parts of them are enough.
    for name in ("alice_train.txt", "intents_train.csv", "intents_test.csv", "pairs_train.csv"):
        lines = (data / name).read_text("utf-8").splitlines(keepends=True)
        (data / name).write_text("".join(lines[: len(lines) // 4]), "utf-8")
    save_model("seq2seq", folder / "dates")
    text = (data / "alice_train.txt").read_text("utf-8")
    trained = RoFormerLiteTokenizer.train(text.splitlines(), vocab_size=300, algorithm="wordpiece")
    names = {f"{name}_token": f"[{name.upper()}]" for name in "pad unk cls sep mask".split()}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained.backend_tokenizer,
        bos_token="[CLS]",
        eos_token="[SEP]",
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=128,
        **names,
    )
    numbers = "vocab_size pad_token_id bos_token_id eos_token_id".split()
    fields = {name: getattr(tokenizer, name) for name in numbers}
    bert = tiny_model("bert", BertForMaskedLM, **fields)
    decoder = {"decoder_start_token_id": 2, "forced_eos_token_id": 3}
    models = {
        "my-bert": bert,
        # The student that learns the vectors of this model has the same width.
        "my-wide-bert": tiny_model("bert", BertForMaskedLM, hidden_size=128, **fields),
        "google-bert/bert-base-uncased": bert,
        "jhu-clsp/ettin-encoder-32m": bert,
        "cross-encoder/ms-marco-MiniLM-L6-v2": tiny_model(
            "bert", BertForSequenceClassification, num_labels=1, **fields
        ),
        "HuggingFaceTB/SmolLM2-135M": tiny_model("llama", LlamaForCausalLM, **fields),
        "facebook/bart-base": tiny_model("bart", BartForConditionalGeneration, **fields, **decoder),
    }
    for name, model in models.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    modules = [Transformer(str(folder / "my-wide-bert")), Pooling(128)]
    sentence_encoder = SentenceTransformer(modules=modules, device="cpu")
    sentence_encoder.save_pretrained(str(folder / "sentence-transformers" / "all-MiniLM-L6-v2"))


def environment_of_blocks() -> dict[str, str]:
    """Environment variables with which a block finds roformer-lite and torchrun next to the tested
    Python, and draws no windows."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "MPLBACKEND": "agg"}


def run_python(code: str, argv: list[str], folder: Path) -> str:
    """What a program prints in a new process, in which `LIBRARIES` are imported already.

    Importing them takes longer than most blocks. This package is not among them, so that a block
    has to import it where a reader has to."""
    with ProcessPoolExecutor(1, PROCESSES) as pool:
        environment = environment_of_blocks()
        running = pool.submit(printed_by, code, argv, folder, environment)
        return running.result(timeout=300)


def run_command(command: str, folder: Path) -> str:
    """What a command of a shell script prints."""
    if command.startswith("roformer-lite ") and not set("|<>$&;").intersection(command):
        return run_python(PROGRAM, shlex.split(command, comments=True), folder)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=environment_of_blocks(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_block(block: Block, folder: Path) -> str:
    """What a block prints in a folder."""
    if "distributed_config" in block.code:
        (folder / "shards.py").write_text(block.code, "utf-8")
        return run_command("torchrun --nproc_per_node 2 --standalone shards.py", folder)
    if block.language == "python":
        return run_python(block.code, [str(block)], folder)
    code = block.code.replace("\\\n", " ")
    code = code.replace("python tutorials/", f"{sys.executable} {ROOT}/tutorials/")
    # The lines that continue a command are indented.
    commands = re.split(r"\n(?=\S)", code.rstrip())
    # A server would never end.
    servers = ("--port", "roformer-lite app")
    ending = [command for command in commands if not any(map(command.__contains__, servers))]
    return "".join(run_command(command, folder) for command in ending)
