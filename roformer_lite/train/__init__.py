"""From a person's files to a finished model directory."""
