"""A service on a socket, until it is asked to end."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import sys

import uvicorn

from trivium.errors import InputError
from trivium.serve.app import application
from trivium.serve.manners import Lines
from trivium.serve.options import Options
from trivium.serve.service import Service

SWITCH = 0.0005
"""Seconds after which a thread that computes gives way to one that waits. Python's own are ten times as many: so long an engine
would hold up each step of a commit."""


def server_of(service: Service) -> uvicorn.Server:
    """The server of a service. Asked to end (SIGTERM, Ctrl-C) it takes no new connections, and lets requests under way finish
    in `Options.drain` seconds."""
    config = uvicorn.Config(
        application(service), log_config=None, access_log=False, server_header=False,
        timeout_graceful_shutdown=math.ceil(service.options.drain),
    )  # fmt: skip
    return uvicorn.Server(config)


def listen(options: Options) -> socket.socket:
    """The socket of a server. InputError where it cannot be had."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        return socket.create_server((options.host, options.port), family=family, backlog=2048)
    except OSError as error:
        raise InputError(f"cannot listen on {options.host} port {options.port}: {error.strerror or error}") from error


def url(host: str, port: int) -> str:
    """What clients of OpenAI are given as the base URL."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def run(service: Service) -> None:
    """Serve until somebody ends it."""
    log_to_stderr()
    sys.setswitchinterval(SWITCH)
    with listen(service.options) as sock:
        host, port = sock.getsockname()[:2]
        print(f"trivium serves {', '.join(service.models)} at {url(host, port)}", flush=True)
        server_of(service).run(sockets=[sock])


def run_stdio(service: Service) -> None:
    """Serve the agent, as an MCP server on stdin and stdout, to whoever started this process."""
    from trivium.serve.tool import serve_stdio

    log_to_stderr()
    asyncio.run(serve_stdio(service))


def log_to_stderr() -> None:
    """A JSON object a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("mcp").setLevel(logging.WARNING)
