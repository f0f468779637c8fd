"""The tasks, one recipe each."""

from .base import Recipe
from .classify import Classify
from .embed import Embed
from .language_model import CausalLM, MaskedLM
from .rerank import Rerank
from .seq2seq import Seq2Seq
from .tag import Tag

RECIPES: dict[str, type[Recipe]] = {
    recipe.name: recipe for recipe in (Seq2Seq, MaskedLM, CausalLM, Classify, Tag, Embed, Rerank)
}
