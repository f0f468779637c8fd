#!/usr/bin/env bash
# Both kinds of positions are trained by one script.
exec bash "$(dirname "$0")/../scan-length-rope/recipe.sh"
