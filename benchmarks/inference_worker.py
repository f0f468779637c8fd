"""The process of one engine: reads a number of rows from standard input, and writes how long the answer took."""

import json
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

from roformer_lite.predict.engines import load_engine
from roformer_lite.saved_model import load_config, load_model, load_tokenizer

from .inference import OURS_IN_BFLOAT16, STOCK, InferenceArguments
from .processes import peak_of_process
from .workload import Batch, Workload, make_batches

AUTO = {
    "encoder": AutoModelForSequenceClassification,
    "seq2seq": AutoModelForSeq2SeqLM,
    "causal": AutoModelForCausalLM,
}


def _batch(work: InferenceArguments, rows: int) -> Batch:
    (batch,) = make_batches(Workload(batch=rows, seq=work.seq, lengths=work.lengths, batches=1, seed=work.seed))
    if work.kind == "causal":  # which reads its padding before the text
        batch.input_ids, batch.attention_mask = batch.input_ids.flip(1), batch.attention_mask.flip(1)
    return batch


def _load(engine: str, directory: str, kind: str) -> Any:
    if engine == STOCK:
        model = AUTO[kind].from_pretrained(directory).eval()
        if kind != "encoder":
            model.generation_config.eos_token_id = model.generation_config.forced_eos_token_id = None
        return model
    if engine == "torch":
        return load_model(directory).eval()
    if engine == OURS_IN_BFLOAT16:
        return load_model(directory).bfloat16().eval()
    return load_engine(engine, directory, load_config(directory), load_tokenizer(directory))


@torch.inference_mode()
def main() -> None:
    engine_name, directory, options = sys.argv[1:]
    work = InferenceArguments(**json.loads(options))
    engine = _load(engine_name, directory, work.kind)
    for line in sys.stdin:
        batch = _batch(work, int(line))
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        start, processor_start = time.perf_counter(), time.process_time()
        if work.kind == "encoder":
            answer = engine(**inputs).logits
        else:
            limits = {"max_new_tokens": work.new_tokens, "max_length": None, "num_beams": work.beams}
            answer = engine.generate(**inputs, do_sample=False, **limits)
        report = {
            "seconds": time.perf_counter() - start,
            "processor_seconds": time.process_time() - processor_start,
            "peak_mib": peak_of_process("cpu") / 2**20,
            "answer": answer.flatten().tolist(),
        }
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
