"""What the layers start from: embeddings of tokens, segments and absolute positions."""

import torch
from torch import nn
from transformers.utils.import_utils import is_tracing

from .configuration_roformer_lite import RoFormerLiteConfig
from .dropout import RoFormerLiteDropout
from .fast_linear import RoFormerLiteLinear
from .layers import make_norm
from .ragged import RaggedBatch
from .rope import sinusoidal_positions
from .torch_internals import has_forward_hooks

KEPT_IN_TRAINING = 1 - 0.15 * 0.8  # share of the tokens that BERT's rule does not mask


def look_up(table: nn.Module, ids: torch.Tensor, name: str) -> torch.Tensor:
    """Rows `(..., width)` of a table for `ids` `(...)`, the argument `name`.

    Raises:
        ValueError: for a number without a row, on a CPU. Other devices report it in their own way.
    """
    try:
        return table(ids)
    except IndexError as error:
        lowest, highest = int(ids.min()), int(ids.max())
        raise ValueError(
            f"{name} has numbers from {lowest} to {highest}; the table of this model has the rows 0 to "
            f"{table.weight.shape[0] - 1}."
        ) from error


class RoFormerLiteEmbeddings(nn.Module):
    """Token, segment and absolute position embeddings of the tokens, with norm, dropout and projection."""

    def __init__(self, config: RoFormerLiteConfig):
        super().__init__()
        self.config = config
        width = config.embedding_size
        self.word_embeddings = None  # a stack that takes vectors
        if config.vocab_size:
            self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        if config.type_vocab_size:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        if config.position_embedding_type == "learned":
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.norm = make_norm(config, width, config.embedding_norm_eps) if config.embedding_norm else nn.Identity()
        self.dropout = RoFormerLiteDropout(config.hidden_dropout_at("embeddings") if config.vocab_size else 0.0)
        is_wide = width == config.hidden_size
        self.projection = nn.Identity() if is_wide else RoFormerLiteLinear(width, config.hidden_size)

    def forward(
        self,
        tokens: RaggedBatch,
        input_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Padded input to the hidden states of its real tokens.

        Args:
            tokens: Which tokens are real, and their positions.
            input_ids: `(B, L)`; or give `inputs_embeds`, `(B, L, embedding_size)`.
            token_type_ids: `(B, L)`. Default: zeros.

        Returns:
            `(N, hidden)`, or `(B, L, hidden)` in a dense batch; `...` below.
        """
        position_ids = tokens.position_ids
        states = self._embed_words(tokens, input_ids, inputs_embeds)  # (..., embedding_size)
        if self.config.scale_embeddings:
            states = states * self.config.embedding_size**0.5
        if self.config.token_dropout_mask_id is not None and input_ids is not None:
            states = self._drop_masked(tokens, input_ids, states)
        if self.config.type_vocab_size:
            no_segments = token_type_ids is None
            token_type_ids = torch.zeros_like(position_ids) if no_segments else tokens.gather(token_type_ids)
            states = states + look_up(self.token_type_embeddings, token_type_ids, "token_type_ids")
        if self.config.position_embedding_type == "learned":
            states = states + self._look_up_positions(tokens)
        elif self.config.position_embedding_type == "sinusoidal":
            states = states + sinusoidal_positions(position_ids, states.shape[-1], states.dtype)
        return self.projection(self.dropout(self.norm(states)))

    def _look_up_positions(self, tokens: RaggedBatch) -> torch.Tensor:
        rows, longest = self.config.max_position_embeddings, max(tokens.lengths, default=0)
        position_ids = tokens.position_ids
        # A GPU does not recover from a number without a row; beside a cache only the positions tell the largest.
        is_counted = tokens.lengths and not tokens.is_packed
        if position_ids.device.type != "cpu" and not is_counted and not is_tracing(position_ids):
            longest = int(position_ids.max()) + 1 if position_ids.numel() else 0
        try:
            if longest <= rows:
                return self.position_embeddings(position_ids)
        except IndexError:
            longest = int(position_ids.max()) + 1
            if longest <= rows:  # a negative number
                return look_up(self.position_embeddings, position_ids, "position_ids")
        raise ValueError(
            f"max_position_embeddings={rows} learned positions cannot hold an input of {longest} tokens; truncate it, "
            "or use position_embedding_type='rope'."
        )

    def resize_positions(self, rows: int) -> None:
        """Give the learned positions `rows` rows: the first ones stay, new ones are drawn as at the start.

        Raises:
            ValueError: when the positions are not learned, or `rows` is not positive.
        """
        kind = self.config.position_embedding_type
        if kind != "learned":
            raise ValueError(
                f"position_embedding_type={kind!r} has no table of positions to resize, and no limit of length."
            )
        if rows < 1:
            raise ValueError(f"new_num_position_embeddings={rows} is not possible: it must be a positive number.")
        old = self.position_embeddings.weight
        new = nn.Embedding(rows, old.shape[1], device=old.device, dtype=old.dtype)
        kept = min(rows, len(old))
        with torch.no_grad():
            new.weight.normal_(0.0, self.config.initializer_range)
            new.weight[:kept] = old[:kept]
        new.weight.requires_grad_(old.requires_grad)
        self.position_embeddings = new
        self.config.max_position_embeddings = rows

    def _embed_words(
        self, tokens: RaggedBatch, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None
    ) -> torch.Tensor:
        if inputs_embeds is not None:
            return tokens.gather(inputs_embeds)
        if self.word_embeddings is None:
            raise ValueError("vocab_size=0: this model takes vectors; give inputs_embeds in place of input_ids.")
        if has_forward_hooks(self.word_embeddings):  # such as NEFTune's, which expects (B, L, embedding_size)
            return tokens.gather(look_up(self.word_embeddings, input_ids, "input_ids"))
        return look_up(self.word_embeddings, tokens.gather(input_ids), "input_ids")

    def _drop_masked(self, tokens: RaggedBatch, input_ids: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """States without those of mask tokens, and the others of each document larger by as much as is missing."""
        dtype = torch.promote_types(states.dtype, torch.float32)  # which can count
        is_masked = (input_ids == self.config.token_dropout_mask_id).to(dtype)  # (B, L)
        masked, places, documents, count = tokens.tokens_of_documents(is_masked)
        lengths = masked.new_zeros(count).index_add(0, documents, torch.ones_like(masked))
        kept = lengths.index_add(0, documents, -masked).clamp(min=1)
        factors = (1 - masked) * KEPT_IN_TRAINING * (lengths / kept)[documents]
        padded = is_masked.new_zeros(is_masked.numel()).index_copy(0, places, factors)
        return states * tokens.gather(padded.view_as(is_masked))[..., None].to(states.dtype)
