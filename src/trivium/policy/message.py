"""A message as the OpenAI chat API has it: role, content, tool_calls, tool_call_id."""

from __future__ import annotations

from typing import Any

Message = dict[str, Any]
