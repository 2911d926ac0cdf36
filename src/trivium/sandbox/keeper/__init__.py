"""The keeper: one process that holds the files of all sandboxes of one provider, and starts their commands.

It lives in a mount namespace of its own, below a tmpfs that no path of the host leads to. So all that it mounted goes with it,
and it goes when its provider does: its socket comes to an end. line.py starts `__main__.py` as a script; all in this folder
stands on the standard library alone.

    layers/ID/       a tmpfs of limited size: up/ (files) and work/ (overlayfs' own)
    boxes/ID/        an overlay: the layers of a snapshot below, one layer of its own on top
    runtime/N/       what is shown read-only: the interpreter, packages
"""

MESSAGE = 1 << 20
"""Bytes of one request, or of its answer, at most: what is read at once."""
