#!/usr/bin/env bash
# All lengths are trained by one script.
exec bash "$(dirname "$0")/../movies-512/recipe.sh"
