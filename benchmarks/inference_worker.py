"""The process of one engine. It reads numbers of rows from standard input, and writes the time of
each answer.

It runs in the environment of its engine, so it imports nothing that only other engines need.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

# The import registers our models, also with vLLM.
import hf_roformer_lite  # noqa: F401

from .inference import (
    KINDS_OF_TOKENS,
    OURS_IN_BFLOAT16,
    STOCK,
    TORCH,
    VLLM,
    InferenceArguments,
)
from .processes import peak_of_process
from .workload import Batch, Workload, make_batches

# The answer contains normalised vectors or probabilities, `(rows, width)`, or new tokens.
Run = Callable[[Batch], torch.Tensor]
AUTO_CLASSES = {
    "encode": "AutoModel",
    "classify": "AutoModelForSequenceClassification",
    "causal": "AutoModelForCausalLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
}
VARIABLES_OF_VLLM = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    # OMP_NUM_THREADS is the number of threads.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
}


def _batch(kind: str, work: InferenceArguments, rows: int) -> Batch:
    workload = Workload(
        batch=rows,
        batches=1,
        seq=work.seq,
        lengths=work.lengths,
        vocab_size=work.vocab_size,
        seed=work.seed,
    )
    (batch,) = make_batches(workload)
    if kind == "causal":
        # Prompts are padded on the left.
        batch.input_ids = batch.input_ids.flip(1)
        batch.attention_mask = batch.attention_mask.flip(1)
    return batch


def _mean(states: torch.Tensor, batch: Batch) -> torch.Tensor:
    real = batch.attention_mask[..., None]
    return (states * real).sum(1) / real.sum(1)


def _run_of(engine: str, kind: str, directory: str, work: InferenceArguments) -> Run:
    """Load a model, and return the function that computes the answers."""
    if engine == VLLM:
        return _run_of_vllm(kind, directory, work)
    model = _load(engine, kind, directory)
    limits = {"max_new_tokens": work.new_tokens, "max_length": None, "do_sample": False}

    def run(batch: Batch) -> torch.Tensor:
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        if kind in KINDS_OF_TOKENS:
            return model.generate(**inputs, **limits)[:, -work.new_tokens :]
        output = model(**inputs)
        if kind == "classify":
            return output.logits.float().softmax(-1)
        vectors = getattr(output, "sentence_embedding", None)
        if vectors is None:
            vectors = _mean(output.last_hidden_state, batch)
        return F.normalize(vectors.float(), dim=-1)

    return run


def _load(engine: str, kind: str, directory: str) -> Any:
    import transformers

    from roformer_lite.onnx_model import OnnxModel
    from roformer_lite.saved_model import load_config, load_model
    from roformer_lite.sentence_encoder import SentenceEncoder

    if engine == STOCK:
        auto_class = getattr(transformers, AUTO_CLASSES[kind])
        model = auto_class.from_pretrained(directory).eval()
        if model.can_generate():
            model.generation_config.eos_token_id = None
            model.generation_config.forced_eos_token_id = None
        return model
    if engine not in (TORCH, OURS_IN_BFLOAT16):
        return OnnxModel.load(directory, load_config(directory))
    model = load_model(directory)
    if kind == "encode":
        model = SentenceEncoder(model)
    if engine == OURS_IN_BFLOAT16:
        model = model.bfloat16()
    return model.eval()


def _run_of_vllm(kind: str, directory: str, work: InferenceArguments) -> Run:
    os.environ |= VARIABLES_OF_VLLM
    from vllm import LLM, SamplingParams

    settings: dict[str, Any] = {
        "dtype": "float32",
        "enforce_eager": True,
        "max_num_seqs": max(work.rows),
    }
    if kind != "causal":
        settings["pooler_config"] = {"seq_pooling_type": "MEAN"}
    llm = LLM(directory, max_model_len=work.seq + work.new_tokens, **settings)
    greedy = SamplingParams(
        temperature=0, max_tokens=work.new_tokens, ignore_eos=True, detokenize=False
    )

    def run(batch: Batch) -> torch.Tensor:
        rows = zip(batch.input_ids, batch.attention_mask.bool(), strict=True)
        texts = [{"prompt_token_ids": ids[mask].tolist()} for ids, mask in rows]
        if kind == "causal":
            found = llm.generate(texts, greedy, use_tqdm=False)
            return torch.tensor([list(answer.outputs[0].token_ids) for answer in found])
        if kind == "encode":
            found = llm.embed(texts, use_tqdm=False)
            return torch.tensor([answer.outputs.embedding for answer in found])
        found = llm.classify(texts, use_tqdm=False)
        return torch.tensor([answer.outputs.probs for answer in found])

    return run


@torch.inference_mode()
def main() -> None:
    engine, kind, directory, options = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    # The output of libraries is written to the log.
    os.dup2(2, 1)
    work = InferenceArguments(**json.loads(options))
    run = _run_of(engine, kind, directory, work)
    for line in sys.stdin:
        batch = _batch(kind, work, int(line))
        start = time.perf_counter()
        processor_start = time.process_time()
        answer = run(batch)
        report = {
            "seconds": time.perf_counter() - start,
            "processor_seconds": time.process_time() - processor_start,
            "peak_mib": peak_of_process("cpu") / 2**20,
            "answer": answer.flatten().tolist(),
        }
        print(json.dumps(report), file=answers, flush=True)


if __name__ == "__main__":
    main()
