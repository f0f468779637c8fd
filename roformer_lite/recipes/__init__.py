"""The tasks, one recipe each."""

from .base import Recipe
from .classify import Classify

RECIPES: dict[str, type[Recipe]] = {recipe.name: recipe for recipe in (Classify,)}
