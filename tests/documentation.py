"""The blocks of code that README and docs show, and how each of them is run."""

import json
import multiprocessing
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from conftest import ROOT
from hub_server import ENVIRONMENT
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from hf_roformer_lite import RoFormerLiteTokenizer

README = ROOT / "README.md"
# This page trains the model `dates`.
DATES_PAGE = ROOT / "docs" / "seq2seq.md"
PROGRAM = "import sys; from roformer_lite.cli import main; sys.exit(main())"
PROCESSES = multiprocessing.get_context("forkserver")
LIBRARIES = ["torch", "transformers.trainer", "datasets", "sentence_transformers", "scipy.stats"]
PROCESSES.set_forkserver_preload(LIBRARIES)
# Blocks with these words are not run here: they prepare a machine, or they need several machines.
RUN_ELSEWHERE = ("pip install", "--machine_rank")
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
    """Write the files that the pages name, and tiny models in place of the pretrained ones."""
    (folder / "text.txt").write_text(
        "".join(f"line {n} says that {n} is a number\n" for n in range(60)), "utf-8"
    )
    shutil.copytree(ROOT / "examples" / "data", folder / "examples" / "data")
    write_checkpoints(folder)


def write_checkpoints(folder: Path) -> None:
    """Write tiny models with random weights to directories named like the models of the Hub.

    transformers looks for a directory before it asks the Hub."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    text = (folder / "examples" / "data" / "alice_train.txt").read_text("utf-8")
    trained = RoFormerLiteTokenizer.train(text.splitlines(), vocab_size=300, algorithm="wordpiece")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained.backend_tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        bos_token="[CLS]",
        eos_token="[SEP]",
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=128,
    )
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    bart = {
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "decoder_start_token_id": tokenizer.bos_token_id,
        "forced_eos_token_id": tokenizer.eos_token_id,
    }
    models = {
        "my-bert": BertForMaskedLM(BertConfig(**sizes)),
        # The student that learns the vectors of this model has the same width.
        "my-wide-bert": BertForMaskedLM(BertConfig(**{**sizes, "hidden_size": 128})),
        "google-bert/bert-base-uncased": BertForMaskedLM(BertConfig(**sizes)),
        "jhu-clsp/ettin-encoder-32m": BertForMaskedLM(BertConfig(**sizes)),
        "cross-encoder/ms-marco-MiniLM-L6-v2": BertForSequenceClassification(
            BertConfig(**sizes, num_labels=1)
        ),
        "HuggingFaceTB/SmolLM2-135M": LlamaForCausalLM(LlamaConfig(**sizes)),
        "facebook/bart-base": BartForConditionalGeneration(BartConfig(**bart)),
    }
    for name, model in models.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    sentence_encoder = SentenceTransformer(
        modules=[Transformer(str(folder / "my-wide-bert")), Pooling(128)], device="cpu"
    )
    name = "sentence-transformers/all-MiniLM-L6-v2"
    sentence_encoder.save_pretrained(str(folder / name))


def environment_of_blocks() -> dict[str, str]:
    """Environment variables with which a block finds roformer-lite and torchrun next to the tested
    Python, and draws no windows."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {"PATH": path, "MPLBACKEND": "agg"}


def run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    """The output of a command."""
    environment = {**os.environ, **environment_of_blocks(), **(environment or {})}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_with_libraries(code: str, argv: list[str], folder: Path) -> str:
    """The output of a Python program in a new process, in which `LIBRARIES` are imported already.

    Importing them takes longer than most blocks. This package is not among them, so that a block
    has to import it where a reader has to."""
    with TemporaryDirectory() as printed:
        process = PROCESSES.Process(target=_run_program, args=(code, argv, folder, Path(printed)))
        process.start()
        process.join(timeout=300)
        if process.exitcode is None:
            process.kill()
        errors = (Path(printed) / "stderr").read_text("utf-8")
        assert process.exitcode == 0, errors
        return (Path(printed) / "stdout").read_text("utf-8")


def _run_program(code: str, argv: list[str], folder: Path, printed: Path) -> None:
    os.chdir(folder)
    os.environ.update(environment_of_blocks())
    for stream in (sys.stdout, sys.stderr):
        file = os.open(printed / stream.name.strip("<>"), os.O_WRONLY | os.O_CREAT)
        os.dup2(file, stream.fileno())
    sys.argv = argv
    exec(compile(code, argv[0], "exec"), {"__name__": "__main__"})


def run_python(block: Block, folder: Path, hub_url: str) -> str:
    code = block.code
    if "gradio_client" in code:
        # The server of the block before it has answered this block.
        return ""
    environment = {}
    start = [sys.executable]
    if '"me/' in code:
        # huggingface_hub reads these variables when it is imported.
        environment = {**ENVIRONMENT, "HF_ENDPOINT": hub_url, "HF_HOME": str(folder / "home")}
    if "trust_remote_code" in code:
        # Such a block is for readers who have not installed the package, so it runs without it.
        start = [sys.executable, "-I", "-S"]
        paths = [path for path in sys.path if path.endswith("-packages")]
        code = f"import sys; sys.path += {paths}; sys.modules['hf_roformer_lite'] = None\n{code}"
    if "distributed_config" in code:
        (folder / "shards.py").write_text(code, "utf-8")
        launcher = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
        return run([sys.executable, *launcher, "shards.py"], folder, environment)
    if code is block.code and not environment:
        return run_with_libraries(code, [str(block)], folder)
    return run([*start, "-c", code], folder, environment)


def run_bash(block: Block, folder: Path) -> str:
    """Run the commands of a block. A server is always the last command. It gets one request, and is
    stopped afterwards."""
    code = block.code.replace("\\\n", " ")
    if code.startswith("curl"):
        # This request was sent to the server of the block before it.
        return ""
    code = code.replace("python tutorials/", f"{sys.executable} {ROOT}/tutorials/")
    server = re.search(r"^.* --port \d+$", code, re.MULTILINE)
    script = code[: server.start()] if server else code
    # The lines that continue a command are indented.
    commands = re.split(r"\n(?=\S)", script.rstrip())
    printed = "".join(run_command(command, folder) for command in commands)
    if server is None:
        return printed
    return printed + answer_of_server(shlex.split(server[0]), block, folder)


def run_command(command: str, folder: Path) -> str:
    """The output of a command of a shell script."""
    if command.startswith("roformer-lite ") and not set("|<>$&;").intersection(command):
        return run_with_libraries(PROGRAM, shlex.split(command, comments=True), folder)
    return run(["bash", "-euo", "pipefail", "-c", command], folder)


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def answer_of_server(command: list[str], block: Block, folder: Path) -> str:
    """Start a server on a free port, and return its answer to the request that the page shows
    below its block."""
    port = free_port()
    *command, _ = command
    environment = {**os.environ, **environment_of_blocks(), "HF_HUB_OFFLINE": "1"}
    server = subprocess.Popen(
        [*command, port], cwd=folder, env=environment, stdout=subprocess.DEVNULL
    )
    try:
        for _ in range(600):
            assert server.poll() is None, "the server ended by itself"
            with suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", int(port))).close()
                if "app" in command:
                    return answer_of_page(port, block, folder)
                return completion(port, block)
            time.sleep(0.2)
    finally:
        server.terminate()
        server.communicate(timeout=60)
    raise AssertionError("the server never listened")


def completion(port: str, block: Block) -> str:
    shown = next(other.code for other in blocks_of(block.page) if other.code.startswith("curl"))
    command = shlex.split(shown.replace("\\\n", " "))
    data = command[command.index("-d") + 1]
    header, value = command[command.index("-H") + 1].split(": ")
    url = command[1].replace("8000", port)
    post = urllib.request.Request(url, data.encode(), headers={header: value})
    with urllib.request.urlopen(post, timeout=120) as reply:
        return json.load(reply)["choices"][0]["text"]


def answer_of_page(port: str, block: Block, folder: Path) -> str:
    """What the client of the page prints that is shown below `block`."""
    client = next(other for other in blocks_of(block.page) if "gradio_client" in other.code)
    printed = run([sys.executable, "-c", client.code.replace("7860", port)], folder)
    assert printed.strip()
    return ""


class Directories:
    """The directory of each page, in which its blocks run.

    Pages of docs that use the model `dates` find it there, trained by the example of one of them."""

    def __init__(self, factory: pytest.TempPathFactory):
        self.factory = factory
        self.examples = factory.mktemp("examples")
        self.known: dict[Path, Path] = {}
        write_examples(self.examples)

    def of(self, page: Path) -> Path:
        if page not in self.known:
            self.known[page] = self.factory.mktemp(page.stem)
            shutil.copytree(self.examples, self.known[page], dirs_exist_ok=True)
            if page != DATES_PAGE and '"dates"' in page.read_text("utf-8"):
                shutil.copytree(self.trained_dates(), self.known[page] / "dates")
        return self.known[page]

    def trained_dates(self) -> Path:
        dates = self.of(DATES_PAGE) / "dates"
        if not (dates / "config.json").exists():
            blocks = blocks_of(DATES_PAGE)
            example = next(block for block in blocks if "Seq2SeqTrainer(" in block.code)
            run_python(example, self.of(DATES_PAGE), "")
        return dates


def check_block(block: Block, folder: Path, hub_url: str) -> None:
    """Run a block in a folder, and check what it prints."""
    is_python = block.language == "python"
    printed = run_python(block, folder, hub_url) if is_python else run_bash(block, folder)
    if block.printed is not None and "Trainer(" in block.code:
        # A Trainer prints its log first, which the page does not show.
        assert printed.endswith(block.printed)
    elif block.printed is not None:
        assert printed == block.printed
