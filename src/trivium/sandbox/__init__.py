"""Where actions land: sandboxes behind one seam. See docs/sandbox.md."""

from trivium.sandbox.base import WORK, Capabilities, Command, Limits, Provider, Result, Sandbox, SandboxError, inside
from trivium.sandbox.docker import Docker
from trivium.sandbox.fake import Fake
from trivium.sandbox.local_unsafe import LocalUnsafe
from trivium.sandbox.ns import Ns
from trivium.sandbox.remote import Remote

__all__ = [
    "Capabilities", "Command", "Docker", "Fake", "Limits", "LocalUnsafe", "Ns", "Provider", "Remote", "Result", "Sandbox",
    "SandboxError", "WORK", "inside",
]  # fmt: skip
