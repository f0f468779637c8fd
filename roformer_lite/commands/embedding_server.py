"""The server of encoders: `/v1/embeddings` as OpenAI's API has it, on FastAPI and uvicorn, behind the same guard."""

import base64
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import InputError, check_number
from ..sentence_encoder import SentenceEncoder
from .request_checks import BadRequest, RequestLimits, check_embedding_length

if TYPE_CHECKING:
    from fastapi import FastAPI

_BATCH = 32  # texts of similar length that are computed together


@dataclass
class EmbeddingServerArguments:
    """Options of `roformer-lite serve` for an encoder, named as those of transformers' server."""

    host: str = field(default="localhost", metadata={"help": "Where to listen."})
    port: int = field(default=8000, metadata={"help": "Port to listen at."})
    log_level: str = field(default="warning", metadata={"help": "What uvicorn logs: critical, warning, info …"})

    def __post_init__(self):
        check_number("port", self.port, at_least=1, at_most=65535)
        levels = ("critical", "error", "warning", "info", "debug", "trace")
        if self.log_level not in levels:
            raise InputError(f"--log_level {self.log_level} is unknown; choose one of {', '.join(levels)}")


class TextEmbedder:
    """Vectors of texts, one request at a time.

    Args:
        model: An encoder; its tokens are pooled as `classifier_pooling` says.
        tokenizer: Of the model. Texts with more tokens than its `model_max_length` are refused.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        self.encoder, self.tokenizer = SentenceEncoder(model).eval(), tokenizer
        self.limits = RequestLimits(prompt_tokens=_longest(model, tokenizer), vocab_size=model.config.vocab_size)
        self._turn = threading.Lock()

    def encode(self, given: list[str] | list[list[int]]) -> list[list[int]]:
        """The tokens of texts; ids stay as they are.

        Raises:
            BadRequest: when there are none, or too many.
        """
        rows = [
            self.tokenizer(text, truncation=False, verbose=False)["input_ids"] if isinstance(text, str) else text
            for text in given
        ]
        for number, row in enumerate(rows):
            check_embedding_length(number, row, self.limits)
        return rows

    @torch.inference_mode()
    def embed(self, rows: list[list[int]]) -> np.ndarray:
        """Vectors of length 1, `(texts, hidden)`, of tokens."""
        vectors = np.zeros((len(rows), self.encoder.config.hidden_size), dtype=np.float32)
        order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
        with self._turn:
            for start in range(0, len(order), _BATCH):
                chosen = order[start : start + _BATCH]
                batch = self.tokenizer.pad({"input_ids": [rows[i] for i in chosen]}, return_tensors="pt")
                pooled = self.encoder(batch["input_ids"], batch["attention_mask"]).sentence_embedding
                vectors[chosen] = torch.nn.functional.normalize(pooled.float()).numpy()
        return vectors


def embedding_application(embedder: TextEmbedder, name: str) -> "FastAPI":
    """The application: `/v1/embeddings`, `/v1/models` and `/health`."""
    from fastapi import FastAPI

    from .request_guard import RequestGuard

    application = FastAPI(title=name)
    application.add_middleware(RequestGuard, limits=embedder.limits)

    @application.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @application.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": name, "object": "model"}]}

    @application.post("/v1/embeddings")
    def embeddings(fields: dict[str, Any]) -> dict[str, Any]:
        if fields.get("model") not in (None, name):
            raise BadRequest(f"model {fields['model']!r}: this server has {name!r} alone")
        given = fields["input"]
        is_one = isinstance(given, str) or isinstance(given[0], int)
        rows = embedder.encode([given] if is_one else given)
        shape = _as_base64 if fields.get("encoding_format") == "base64" else np.ndarray.tolist
        data = [
            {"object": "embedding", "index": number, "embedding": shape(vector)}
            for number, vector in enumerate(embedder.embed(rows))
        ]
        used = sum(map(len, rows))
        usage = {"prompt_tokens": used, "total_tokens": used}
        return {"object": "list", "data": data, "model": name, "usage": usage}

    return application


def serve_embeddings(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str, options: EmbeddingServerArguments
) -> None:
    """Answer requests until the process is ended."""
    import uvicorn

    application = embedding_application(TextEmbedder(model, tokenizer), name)
    uvicorn.run(application, host=options.host, port=options.port, log_level=options.log_level)


def _longest(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    config = model.config
    if config.position_embedding_type == "learned":
        return min(tokenizer.model_max_length, config.max_position_embeddings)
    return min(tokenizer.model_max_length, max(config.max_position_embeddings, 1024))


def _as_base64(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
