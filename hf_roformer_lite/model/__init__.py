"""Configurations, models and tokenizers: the files that travel to the Hub together with weights.

From outside this folder they import only `padding_free`, and the training of tokenizers when it is
requested. In reading order:

* `configuration_roformer_lite.py`: the fields of one stack, with `presets.py`, the sizes by name,
  and `rope_parameters.py`, what rotations may be;
* `modeling_roformer_lite.py`: the stack, from positions and embeddings to layers, with
  `packing.py`, which tokens are real and which belong to one document, and `pooling.py`;
* `heads_roformer_lite.py`: language models and classifiers, with `losses.py` and `generation.py`;
* `configuration_roformer_lite_seq2seq.py` and `modeling_roformer_lite_seq2seq.py`: the
  encoder–decoder;
* `tokenization_roformer_lite.py`.

The other files serve one purpose each: `hub.py` models that carry their code, `parallel.py` several
processes, `serving.py` vLLM, `compatibility.py` other versions of transformers, and
`reference_layers.py` and `tokenization_jieba.py` checkpoints of other systems.
"""
