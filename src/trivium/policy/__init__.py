"""Who speaks: the seam `Policy`, how messages become tokens, a script that ships as the fake, and any OpenAI-compatible endpoint."""

from trivium.policy.base import Policy, Reply, View
from trivium.policy.endpoint import Endpoint
from trivium.policy.render import Asked, Renderer, Said
from trivium.policy.scripted import Scripted

__all__ = ["Asked", "Endpoint", "Policy", "Renderer", "Reply", "Said", "Scripted", "View"]
