"""vLLM in its own environment reads a JSON file of jobs, and writes one of answers for
`test_vllm.py`."""

import json
import os
import sys

os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
}

from vllm import LLM, SamplingParams

SETTINGS = {"dtype": "float32", "enforce_eager": True, "max_model_len": 128, "max_num_seqs": 32}


def answer(job: dict) -> list | str:
    """A list of tokens, a vector or probabilities for each text, or the error if there are none."""
    try:
        llm = LLM(job["model"], **SETTINGS, **job["settings"])
    except Exception as error:
        return str(error)
    texts = [{"prompt_token_ids": ids} for ids in job["texts"]]
    if job["task"] == "generate":
        greedy = SamplingParams(temperature=0, max_tokens=job["new_tokens"], ignore_eos=True)
        generated = llm.generate(texts, greedy, use_tqdm=False)
        return [list(found.outputs[0].token_ids) for found in generated]
    if job["task"] == "embed":
        return [found.outputs.embedding for found in llm.embed(texts, use_tqdm=False)]
    return [found.outputs.probs for found in llm.classify(texts, use_tqdm=False)]


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as jobs:
        answers = [answer(job) for job in json.load(jobs)]
    is_imported = any(name.startswith("hf_roformer_lite") for name in sys.modules)
    if is_imported != (sys.argv[3] == "installed"):
        raise SystemExit(f"hf_roformer_lite was to be {sys.argv[3]}")
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(answers, file)
