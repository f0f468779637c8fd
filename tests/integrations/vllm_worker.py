"""vLLM's answers for `test_vllm.py`, in vLLM's own environment: a JSON file of jobs in, one of
answers out."""

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
    """Tokens, vectors or probabilities, one list a text; or the reason why there are none."""
    try:
        llm = LLM(job["model"], **SETTINGS, **job["settings"])
    except Exception as error:
        return str(error)
    texts = [{"prompt_token_ids": ids} for ids in job["texts"]]
    if job["task"] == "generate":
        greedy = SamplingParams(temperature=0, max_tokens=job["new_tokens"], ignore_eos=True)
        return [
            list(found.outputs[0].token_ids)
            for found in llm.generate(texts, greedy, use_tqdm=False)
        ]
    if job["task"] == "embed":
        return [found.outputs.embedding for found in llm.embed(texts, use_tqdm=False)]
    return [found.outputs.probs for found in llm.classify(texts, use_tqdm=False)]


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as jobs:
        answers = [answer(job) for job in json.load(jobs)]
    if any(job.startswith("hf_roformer_lite") for job in sys.modules) != (
        sys.argv[3] == "installed"
    ):
        raise SystemExit(f"hf_roformer_lite was to be {sys.argv[3]}")
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(answers, file)
