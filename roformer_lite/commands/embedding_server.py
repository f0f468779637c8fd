"""The server of encoders, `/v1/embeddings` as OpenAI's API has it, and what the server of causal models shares."""

import base64
import threading
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import numpy as np
import torch
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import InputError
from ..sentence_encoder import SentenceEncoder

MAX_BODY = 2**20  # bytes; more text than anyone types or a small model can take at once
Text = Annotated[str, Field(max_length=MAX_BODY)]  # with a limit, pydantic refuses half characters of JSON
_BATCH = 32  # texts of similar length that are computed together


class EmbeddingRequest(BaseModel):
    """What `/v1/embeddings` takes. Tokens are refused: those that OpenAI's clients make are of another vocabulary."""

    input: Text | Annotated[list[Text], Field(min_length=1, max_length=2048)]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: None = None  # vectors are as wide as the model


class TextEmbedder:
    """Vectors of texts.

    Args:
        model: An encoder; its tokens are pooled as `classifier_pooling` says.
        tokenizer: That of the model. Texts with more tokens than its `model_max_length` are refused.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        self.encoder, self.tokenizer, self.turn = SentenceEncoder(model).eval(), tokenizer, threading.Lock()
        least = 0 if model.config.position_embedding_type == "learned" else 1024
        self.longest = min(tokenizer.model_max_length, max(model.config.max_position_embeddings, least))

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Their tokens.

        Raises:
            InputError: when a text has none or too many.
        """
        rows = [self.tokenizer(text, verbose=False)["input_ids"] for text in texts]
        for number, row in enumerate(rows):
            if not 0 < len(row) <= self.longest:
                raise InputError(f"input {number} has {len(row):,} tokens, and the model reads 1 to {self.longest:,}")
        return rows

    @torch.inference_mode()
    def embed(self, rows: list[list[int]]) -> np.ndarray:
        """Vectors of length 1, `(texts, hidden)`, of tokens, one call at a time."""
        vectors = np.zeros((len(rows), self.encoder.config.hidden_size), dtype=np.float32)
        order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
        with self.turn:
            for start in range(0, len(order), _BATCH):
                chosen = order[start : start + _BATCH]
                batch = self.tokenizer.pad({"input_ids": [rows[i] for i in chosen]}, return_tensors="pt")
                pooled = self.encoder(**batch.to(self.encoder.device)).sentence_embedding
                vectors[chosen] = torch.nn.functional.normalize(pooled.float()).cpu().numpy()
        return vectors


def new_application(name: str, is_alive: Callable[[], bool] = lambda: True, lifespan: Any = None) -> FastAPI:
    """An application with `/health` and `/v1/models`, which refuses large bodies.

    Args:
        name: Of the model.
        is_alive: What `/health` asks.
        lifespan: What FastAPI enters before the first request, and leaves after the last. Default: nothing.
    """
    application = FastAPI(title=name, lifespan=lifespan)

    @application.middleware("http")
    async def limit_bodies(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        length = request.headers.get("content-length", "")
        if request.method == "POST" and not (length.isdecimal() and int(length) <= MAX_BODY):
            return JSONResponse({"detail": f"a body of at most {MAX_BODY:,} bytes is needed, with its length"}, 413)
        return await call_next(request)

    @application.exception_handler(InputError)
    async def refuse(request: Request, error: InputError) -> Response:
        return JSONResponse({"detail": str(error)}, 400)

    @application.exception_handler(RequestValidationError)  # FastAPI's own repeats the input, which may not be JSON
    async def refuse_fields(request: Request, error: RequestValidationError) -> Response:
        found = [f"{'.'.join(map(str, one['loc'][1:])) or 'body'}: {one['msg']}" for one in error.errors()]
        return JSONResponse({"detail": "; ".join(found)}, 422)

    @application.get("/health")
    def health() -> dict[str, str]:
        if not is_alive():
            raise HTTPException(503, "the worker has ended")
        return {"status": "ok"}

    @application.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": name, "object": "model"}]}

    return application


def embedding_application(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str) -> FastAPI:
    """The application of an encoder, which requests may call `name`."""
    application, embedder = new_application(name), TextEmbedder(model, tokenizer)

    @application.post("/v1/embeddings")
    def embeddings(request: EmbeddingRequest) -> dict[str, Any]:
        if request.model not in (None, name):
            raise InputError(f"model {request.model!r}: this server has {name!r} alone")
        rows = embedder.encode([request.input] if isinstance(request.input, str) else request.input)
        vectors: Any = embedder.embed(rows)
        if request.encoding_format == "base64":
            vectors = [base64.b64encode(vector.astype("<f4").tobytes()).decode() for vector in vectors]
        else:
            vectors = vectors.tolist()
        data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)]
        used = sum(map(len, rows))
        usage = {"prompt_tokens": used, "total_tokens": used}
        return {"object": "list", "data": data, "model": name, "usage": usage}

    return application
