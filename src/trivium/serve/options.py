"""What a person decides about a server, all of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from ipaddress import ip_address

from trivium.errors import InputError


@dataclass(frozen=True, slots=True)
class Options:
    """Raises InputError for numbers that cannot be meant, and for an address that others reach without any keys."""

    host: str = "127.0.0.1"
    """the address to listen on; any but this machine's own needs --keys"""
    port: int = 8000
    """the port to listen on; 0: a free one"""
    store: str = ""
    """where calls and episodes are kept: a file, or the URL of a PostgreSQL database; default: served.db in the run's folder"""
    keys: str = ""
    """a file of API keys, made by `trivium keys`; default: none is asked for"""
    redact: str = ""
    """a file of regular expressions, one a line: what matches never reaches an episode"""
    follow: str = ""
    """a folder or bucket of published weights, whose newest version is taken over while requests go on"""
    concurrent: int = 256
    """requests under way at once; more are told to come again"""
    reply: int = 1024
    """tokens of a reply at most, where a request says nothing"""
    temperature: float = 0.0
    """at which the agent speaks; at 0 it takes the most likely word, of which `trivium live` can learn nothing: 1 for that"""
    seconds: float = 300.0
    """how long one request may take, and an episode of the agent"""
    stall: float = 60.0
    """how long a client may take to send its request, or to read a piece of the answer"""
    body: int = 4_000_000
    """bytes of a request at most"""
    idle: float = 900.0
    """seconds without a call after which a session is over, and becomes an episode"""
    retention: float = 0.0
    """days after which whatever was kept is deleted, of a session after its last call; 0: never"""
    drain: float = 30.0
    """seconds that requests under way get when the server is asked to end"""
    mcp: bool = False
    """the agent is a tool of an MCP server too, at /mcp"""
    stdio: bool = False
    """with --mcp: it speaks with whoever started this process, over stdin and stdout, and listens on no port"""

    def __post_init__(self) -> None:
        for name in ("concurrent", "reply", "body"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} must be at least 1, not {getattr(self, name)}")
        for name in ("seconds", "stall", "idle", "drain"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"--{name} must be above 0 and no infinity, not {getattr(self, name)}")
        if not 0 <= self.temperature <= 2:
            raise InputError(f"--temperature is from 0 to 2, not {self.temperature}")
        if not 0 <= self.port < 65536 or not 0 <= self.retention < math.inf:
            raise InputError(f"--port is from 0 to 65535 and --retention at least 0, not {self.port} and {self.retention}")
        if self.stdio and not self.mcp:
            raise InputError("--stdio would change nothing: it is for --mcp")
        if self.stdio and self.keys:
            raise InputError("--keys would change nothing with --stdio: whoever starts this process is its only client")
        if not self.keys and not _is_loopback(self.host):
            raise InputError(f"--host {self.host} lets others in: give --keys too (`trivium keys NAME --file keys.json`)")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
