"""Whole systems on public names only: their tools, rewards and recipes. `search` is Context-1."""
