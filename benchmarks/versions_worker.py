"""The process of one version of the package, which makes models and times their work.

It reads requests from standard input and answers them, with one JSON object on each line. The
package is the first one on the search path. The other modules do not import the package, so that
both versions are measured with the same code.
"""

import inspect
import json
import os
import sys
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from transformers import GenerationConfig, PreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutput

import hf_roformer_lite  # The import registers RoFormerLite models.

from .contenders import SIZES, TOKEN_IDS, Inputs, Step, inputs_of, new_model
from .processes import set_up
from .workload import FIRST_ID, START, Workload, make_batches

# The key-value cache has this name from transformers 5.24 on.
CACHE_NAME = "cache"
if CACHE_NAME not in inspect.signature(create_causal_mask).parameters:
    CACHE_NAME = "past_key_values"
NUM_DECODING_STEPS = 20
NUM_NEW_TOKENS = 64
# The addresses of weights are multiples of 64 bytes, a cache line.
ALIGNMENT = 16


@dataclass(frozen=True)
class Case:
    """One kind of work with one size."""

    task: str
    mode: str
    size: str
    rows: int
    seq: int
    lengths: str

    @property
    def name(self) -> str:
        shape = f"{self.rows}x{self.seq}"
        return "-".join((self.task, self.mode, self.size, shape, self.lengths))


class Work(Protocol):
    """A callable that is timed."""

    def __call__(self) -> None: ...

    def outcome(self) -> list[float]: ...


class Forward:
    """The forward pass of an encoder, without gradients."""

    def __init__(self, model: PreTrainedModel, inputs: Inputs) -> None:
        self.model = model.eval()
        self.inputs = inputs
        self.states = torch.zeros(0)

    @torch.no_grad()
    def __call__(self) -> None:
        self.states = self.model(**self.inputs).last_hidden_state

    def outcome(self) -> list[float]:
        """The mean size of the states of real tokens."""
        is_real = self.inputs["attention_mask"].bool()
        return [self.states[is_real].abs().mean().item()]


class Decoding:
    """Passes with one token in each row, and with the keys and values of all tokens before it in a
    cache. After each run, the cache is cut to the prompt.
    """

    def __init__(self, model: PreTrainedModel, inputs: Inputs) -> None:
        self.model = model.eval()
        is_pair = model.config.is_encoder_decoder
        prompt = dict(inputs)
        rows = len(prompt["input_ids"])
        if is_pair:
            prompt["decoder_input_ids"] = torch.full((rows, 1), START)
        with torch.no_grad():
            output = model(**prompt, use_cache=True)
        self.cache = getattr(output, CACHE_NAME)
        self.prompt_length = self.cache.get_seq_length()
        self.logits = output.logits
        # The tokens do not depend on the outputs, so all contenders read the same ones.
        generator = torch.Generator().manual_seed(0)
        last_id = output.logits.shape[-1]
        shape = (NUM_DECODING_STEPS, rows, 1)
        tokens = torch.randint(FIRST_ID, last_id, shape, generator=generator)
        if is_pair:
            states = BaseModelOutput(last_hidden_state=output.encoder_last_hidden_state)
            common = {"encoder_outputs": states, "attention_mask": inputs["attention_mask"]}
            self.steps = [{"decoder_input_ids": ids, **common} for ids in tokens]
        else:
            masks = growing_masks(inputs["attention_mask"])
            pairs = zip(tokens, masks, strict=True)
            self.steps = [{"input_ids": ids, "attention_mask": mask} for ids, mask in pairs]

    @torch.no_grad()
    def __call__(self) -> None:
        options = {CACHE_NAME: self.cache, "use_cache": True}
        for inputs in self.steps:
            output = self.model(**inputs, **options)
        self.logits = output.logits
        self.cache.crop(-NUM_DECODING_STEPS)

    def outcome(self) -> list[float]:
        """The mean size of the last logits."""
        if self.cache.get_seq_length() != self.prompt_length:
            raise RuntimeError(f"{type(self.model).__name__} did not extend the cache.")
        return [self.logits.abs().mean().item()]


def growing_masks(mask: torch.Tensor) -> list[torch.Tensor]:
    """The padding masks of prompts that are continued by one token after the other."""
    masks = []
    for _ in range(NUM_DECODING_STEPS):
        mask = torch.nn.functional.pad(mask, (0, 1), value=1)
        masks.append(mask)
    return masks


class Generation:
    """Greedy generation of the same number of tokens for all rows."""

    def __init__(self, model: PreTrainedModel, inputs: Inputs) -> None:
        self.model = model.eval()
        self.inputs = inputs
        self.tokens = torch.zeros(0)
        self.settings = GenerationConfig(
            max_new_tokens=NUM_NEW_TOKENS,
            min_new_tokens=NUM_NEW_TOKENS,
            do_sample=False,
            use_cache=True,
            decoder_start_token_id=START,
            **TOKEN_IDS,
        )

    def __call__(self) -> None:
        found = self.model.generate(**self.inputs, generation_config=self.settings)
        self.tokens = found[:, -NUM_NEW_TOKENS:]

    def outcome(self) -> list[float]:
        """The sum of the ids of each row."""
        return self.tokens.double().sum(dim=1).tolist()


class StepOfOneBatch(Step):
    def __init__(self, model: PreTrainedModel, inputs: Inputs) -> None:
        super().__init__(model, [inputs])


WORKS: dict[str, type[Work]] = {
    "forward": Forward,
    "step": StepOfOneBatch,
    "decode": Decoding,
    "generate": Generation,
}


def inputs_of_case(case: Case, vocab_size: int) -> Inputs:
    work = Workload(
        batch=case.rows,
        seq=case.seq,
        lengths=case.lengths,
        batches=1,
        vocab_size=vocab_size,
    )
    (source,) = make_batches(work)
    if case.mode == "step":
        (target,) = make_batches(work, salt=1)
        return inputs_of(case.task, source, target)
    inputs = {"input_ids": source.input_ids, "attention_mask": source.attention_mask}
    if case.task == "causal-lm":
        # Prompts are padded on the left.
        inputs = {name: values.flip(1) for name, values in inputs.items()}
    return inputs


def map_weights(model: PreTrainedModel, folder: Path, name: str) -> None:
    """Put the weights into a file that all processes map.

    The first process writes it. Both versions then read the same memory, so neither benefits from a
    copy at a better address. A model whose weights have other names or shapes gets a file of its
    own.
    """
    weights = dict(sorted(model.named_parameters()))
    shapes = {weight_name: tuple(weight.shape) for weight_name, weight in weights.items()}
    path = folder / f"{name}-{zlib.crc32(repr(shapes).encode()):08x}.bin"
    is_new = not path.exists()
    sizes = [aligned(weight.numel()) for weight in weights.values()]
    memory = torch.from_file(str(path), shared=True, size=sum(sizes))
    for weight, part in zip(weights.values(), memory.split(sizes), strict=True):
        place = part[: weight.numel()].view(weight.shape)
        if is_new:
            place.copy_(weight.data)
        weight.data = place


def aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


class Worker:
    """Answers requests with the models of the last case."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        self.folder = folder
        self.vocab_size = vocab_size
        self.works: dict[str, Work] = {}

    def describe(self) -> dict[str, Any]:
        return {
            "path": hf_roformer_lite.__file__,
            "version": hf_roformer_lite.__version__,
            "transformers": transformers.__version__,
        }

    def build(self, case: dict[str, Any], families: list[str]) -> dict[str, Any]:
        """Make a model of each family, and run its work once."""
        self.works = {}
        facts = {}
        for family in families:
            facts[family] = self.build_one(Case(**case), family)
        return facts

    def build_one(self, case: Case, family: str) -> dict[str, Any]:
        size = SIZES[case.size]
        model = new_model(family, case.task, size, self.vocab_size)
        map_weights(model, self.folder, f"{case.name}-{family}")
        work = WORKS[case.mode](model, inputs_of_case(case, self.vocab_size))
        work()
        self.works[family] = work
        return {
            "outcome": work.outcome(),
            "parameters": sum(weight.numel() for weight in model.parameters()),
            "attention": model.config._attn_implementation,
        }

    def measure(self, family: str, repeats: int) -> float:
        """The processor seconds of one run. An untimed run before it fills the caches with the data
        of this process."""
        work = self.works[family]
        work()
        start = time.process_time()
        for _ in range(repeats):
            work()
        return (time.process_time() - start) / repeats


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    # The output of libraries is written to the log.
    os.dup2(2, 1)
    set_up()
    settings = json.loads(sys.argv[-1])
    worker = Worker(Path(settings["folder"]), settings["vocab_size"])
    for line in sys.stdin:
        request = json.loads(line)
        method = getattr(worker, request.pop("do"))
        print(json.dumps(method(**request)), file=answers, flush=True)
