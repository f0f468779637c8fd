"""The server of causal models: transformers' handlers of OpenAI's requests, for a model that is loaded already.

`transformers serve` looks for a model's class in transformers' own namespace and imports no plugin, so it can't load
the classes of this package. Its handlers only ask a `ModelManager` for a model, and ours has one.
"""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Response
from pydantic import BaseModel, ConfigDict, Field
from transformers import ContinuousBatchingConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.utils import BaseHandler, GenerationState, Modality

from ..errors import InputError
from .embedding_server import Text, new_application

_DEFAULT_NEW_TOKENS = 1024  # transformers' own


class TextRequest(BaseModel):
    """What every request may say about the answer. transformers reads further fields, and does not check these. A
    generation config, which could ask for any amount of work, is refused."""

    model_config = ConfigDict(extra="allow")

    seed: int | None = Field(None, ge=0, lt=2**63)
    temperature: float | None = Field(None, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(None, ge=0, le=1)
    frequency_penalty: float | None = Field(None, gt=-1, le=2)
    max_tokens: int | None = Field(None, ge=1)
    stop: Text | list[Text] | None = None
    generation_config: None = None


class CompletionRequest(TextRequest):
    """What `/v1/completions` takes."""

    prompt: Text


class TextPart(BaseModel):
    """A part of a message."""

    type: str = Field(pattern="^text$")
    text: Text


class Message(BaseModel):
    """A message of a chat; further fields are for the model's chat template."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: Text | list[TextPart] | None = None


class ChatRequest(TextRequest):
    """What `/v1/chat/completions` takes."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)


class _OneModel(ModelManager):
    """Gives the one model that there is to every request."""

    def __init__(self, name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        self.pair = model, tokenizer
        super().__init__(force_model=name)

    def load_model_and_processor(self, *args: Any, **kwargs: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        return self.pair


def text_application(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    name: str,
    batching: ContinuousBatchingConfig | None = None,
) -> FastAPI:
    """The application of a causal model: `/v1/completions` and `/v1/chat/completions`, also as streams.

    Args:
        model: The model.
        tokenizer: Its tokenizer, for chats with a chat template.
        name: By which requests may call the model.
        batching: Compute requests together. Default: one after another.
    """
    state = GenerationState(continuous_batching=batching is not None, cb_config=batching)
    parts = {"model_manager": _OneModel(name, model, tokenizer), "generation_state": state}
    completion, chat = CompletionHandler(**parts), ChatCompletionHandler(**parts)
    # Prompt and answer together; rotary positions go on beyond those of the training.
    window, learned = model.config.max_position_embeddings, "learned"
    if getattr(model.config, "position_embedding_type", learned) != learned:
        window = max(window, 2 * _DEFAULT_NEW_TOKENS)

    @asynccontextmanager
    async def lifespan(application: FastAPI) -> AsyncIterator[None]:
        yield
        state.shutdown()

    application = new_application(name, state.is_cb_alive, lifespan)

    def body_of(request: TextRequest, field: str, used: int) -> dict[str, Any]:
        body, room = request.model_dump(exclude_none=True), window - used
        if room < 1:
            raise InputError(f"the prompt has {used:,} tokens, and the model reads {window:,} with its answer")
        wanted = body.get(field) or body.get("max_tokens")
        if wanted is None:
            body[field] = min(room, max(_DEFAULT_NEW_TOKENS, model.generation_config.max_new_tokens or 0))
        elif wanted > room:
            raise InputError(f"{field} {wanted:,} is too large: after the prompt, {room:,} tokens have room")
        return body

    @application.post("/v1/completions")
    async def complete(request: CompletionRequest) -> Response:
        used = len(tokenizer(request.prompt, verbose=False)["input_ids"])
        return await completion.handle_request(body_of(request, "max_tokens", used), str(uuid.uuid4()))

    @application.post("/v1/chat/completions")
    async def answer(request: ChatRequest) -> Response:
        messages = [message.model_dump(exclude_none=True) for message in request.messages]
        try:
            flat = BaseHandler.get_processor_inputs_from_messages(messages, Modality.LLM)
            used = len(tokenizer.apply_chat_template(flat, add_generation_prompt=True)["input_ids"])
        except Exception as error:  # whatever a template raises is about these messages, or it is missing
            raise InputError(f"messages: the chat template can't be filled in: {error}") from error
        return await chat.handle_request(body_of(request, "max_completion_tokens", used), str(uuid.uuid4()))

    return application
