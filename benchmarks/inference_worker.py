"""The process of one engine: reads a number of rows from standard input, and writes how long the answer took."""

import json
import sys
import time

import torch

from hf_roformer_lite.engines.loading import load_engine
from hf_roformer_lite.saved_model import load_config, load_model, load_tokenizer

from .inference import InferenceArguments
from .processes import peak_of_process
from .workload import Batch, Workload, make_batches


def _batch(work: InferenceArguments, rows: int) -> Batch:
    (batch,) = make_batches(Workload(batch=rows, seq=work.seq, lengths=work.lengths, batches=1, seed=work.seed))
    if work.kind == "causal":  # which reads its padding before the text
        batch.input_ids, batch.attention_mask = batch.input_ids.flip(1), batch.attention_mask.flip(1)
    return batch


@torch.inference_mode()
def main() -> None:
    engine_name, directory, options = sys.argv[1:]
    work = InferenceArguments(**json.loads(options))
    if engine_name == "torch":
        engine = load_model(directory).eval()
    else:
        engine = load_engine(engine_name, directory, load_config(directory), load_tokenizer(directory))
    for line in sys.stdin:
        batch = _batch(work, int(line))
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        start = time.perf_counter()
        if work.kind == "encoder":
            answer = engine(**inputs).logits
        else:
            limits = {"max_new_tokens": work.new_tokens, "max_length": None, "num_beams": work.beams}
            answer = engine.generate(**inputs, do_sample=False, **limits)
        seconds = time.perf_counter() - start
        report = {"seconds": seconds, "peak_mib": peak_of_process("cpu") / 2**20, "answer": answer.flatten().tolist()}
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
