"""The trap that vLLM is on a CPU when nobody turns packing off; loaded by a real server in test_vllm_real.py."""

from trivium_vllm import Worker
from vllm import _custom_ops

_custom_ops._supports_onednn = True

__all__ = ["Worker"]
