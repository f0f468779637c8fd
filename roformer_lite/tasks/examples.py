"""What a model card shows of a task: a row, as a line of input for `predict`, and code that uses
the model on it."""

from __future__ import annotations

import json

from ..data.data_files import Row
from .base import Task
from .classify import MULTI, REGRESSION, SINGLE
from .sentence import SentenceTask

_SENTENCES = {"characters": list("这是一句话"), "words": ["This", "is", "a", "sentence", "."]}


def neutral_example(task: Task) -> Row:
    """A row that is nobody's data, for a card that anybody may read."""
    if task.name == "classify":
        pair = {"text_pair": "the second text of a pair"} if task.args.text_pair_column else {}
        return {"text": "a text to classify", **pair}
    if task.name == "tag":
        tokens = _SENTENCES["characters" if task.data.unit == "characters" else "words"]
        return {"tokens": tokens, "tags": ["O"] * len(tokens)}
    return {
        "seq2seq": {"source": "a line of text", "target": ""},
        "mlm": {"text": "The weather is fine today."},
        "causal": {"text": "Once upon a time"},
    }.get(task.name, {"anchor": "a question", "positive": "its answer"})


def example_line(task: Task, row: Row) -> str:
    """A line of input for `predict`, made of a row."""
    if task.name == "mlm":
        first, _, rest = row["text"].strip().partition(" ")
        return f"{first} [MASK] {rest.partition(' ')[2]}".strip()
    if task.name == "causal":
        return " ".join(row["text"].split()[:5])
    texts = list(task.data.texts([row]))
    return "\t".join(texts[:2]) if task.name in ("classify", "rerank") else texts[0]


def snippet(task: Task, model_id: str, row: Row) -> str:
    """Python code that uses the saved model on a row."""
    line = quoted(example_line(task, row))
    match task.name:
        case "seq2seq":
            code = (
                f"inputs = tokenizer({line}, return_tensors='pt')\n"
                "print(tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True))"
            )
        case "mlm":
            code = (
                f"inputs = tokenizer({line}, return_tensors='pt')\n"
                "logits = model(**inputs).logits[inputs['input_ids'] == tokenizer.mask_token_id]\n"
                "print(tokenizer.convert_ids_to_tokens(logits.topk(5).indices[0].tolist()))"
            )
        case "causal":
            own = task.model.has_own_class
            start = "tokenizer.cls_token" if own else "(tokenizer.cls_token or tokenizer.bos_token)"
            code = (
                f"prompt = {start} + {line}\n"
                "inputs = tokenizer(prompt, add_special_tokens=False, return_tensors='pt')\n"
                "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0], skip_special_tokens=True))"
            )
        case "classify":
            answer = {
                SINGLE: "model.config.id2label[logits.argmax().item()]",
                MULTI: "[name for i, name in model.config.id2label.items() if logits[0, i] > 0]",
                REGRESSION: "logits.item()",
            }[task.data.problem_type]
            texts = ", ".join(map(quoted, task.data.texts([row])))
            code = (
                f"logits = model(**tokenizer({texts}, return_tensors='pt')).logits\nprint({answer})"
            )
        case "tag":
            code = (
                f"tokens = {quoted(task.data.units(row['tokens'], row['tags'])[0])}\n"
                "inputs = tokenizer(tokens, is_split_into_words=True, return_tensors='pt')\n"
                "tags = model(**inputs).logits.argmax(-1)[0].tolist()\n"
                "first = {word: place for place, word in reversed(list(enumerate(inputs.word_ids())))}\n"
                "print([(token, model.config.id2label[tags[first[i]]]) for i, token in enumerate(tokens)])"
            )
        case "embed":
            texts, width = (
                list(task.data.texts([row]))[:2],
                task.model.sentence_model.get_embedding_dimension(),
            )
            code = (
                f"vectors = model.encode({quoted(texts)})  # ({len(texts)}, {width})\n"
                "print(model.similarity(vectors, vectors))"
            )
        case "rerank":
            texts = ", ".join(map(quoted, list(task.data.texts([row]))[:2]))
            code = f"print(model.predict([({texts})]))"
    return _loading_code(task, model_id) + code


def _loading_code(task: Task, model_id: str) -> str:
    """The lines that every snippet begins with."""
    ours = (
        "import hf_roformer_lite  # makes the architecture known to transformers\n"
        * task.model.has_own_class
    )
    if isinstance(task, SentenceTask):
        name = task.model.class_name
        return f"{ours}from sentence_transformers import {name}\n\nmodel = {name}({quoted(model_id)})\n"
    auto = task.model.auto_model.__name__
    return (
        f"{ours}from transformers import {auto}, AutoTokenizer\n\n"
        f"tokenizer = AutoTokenizer.from_pretrained({quoted(model_id)})\n"
        f"model = {auto}.from_pretrained({quoted(model_id)})\n"
    )


def quoted(value: str | list[str]) -> str:
    """Text as a Python literal in double quotes, with characters beyond ASCII kept readable."""
    return json.dumps(value, ensure_ascii=False)
