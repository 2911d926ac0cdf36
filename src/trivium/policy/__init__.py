"""Who speaks: the seam `Policy`, how messages become tokens, a script as the fake that ships, OpenAI-like endpoints."""

from trivium.policy.base import Policy, Reply, Streaming, View
from trivium.policy.endpoint import Endpoint, Price
from trivium.policy.render import Renderer, Speech, ToolCall
from trivium.policy.scripted import Scripted

__all__ = ["Endpoint", "Policy", "Price", "Renderer", "Reply", "Scripted", "Speech", "Streaming", "ToolCall", "View"]
