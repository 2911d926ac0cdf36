"""A vLLM server as a policy: tokens in, tokens out, each with its logprob and the version of the weights that spoke it.

vLLM itself labels its weights, and tells with every reply which of its tokens were sampled under which label. The label
is our version's number; while weights are being replaced it is "8?", and a reply that bears such a label, or one that
nobody published ("default": the server was started anew), is refused. So whatever dies, restarts or loads there, no
token gets a version that is not its own, as long as one client at a time publishes.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from trivium import files
from trivium.errors import TRANSIENT, InputError, LawError, PolicyError, Unsupported
from trivium.policy.base import Reply, View
from trivium.policy.render import Renderer
from trivium.trace import Sampling

if TYPE_CHECKING:
    import torch

WAIT = 1.0
"""Seconds before the second try; each further one waits twice as long."""
_EXTENSION = Path(__file__).with_name("vllm_server")


def command(model: str | Path, *, python: str = "python3", port: int = 8000) -> tuple[list[str], dict[str, str]]:
    """The command that serves `model` on the loopback as a Vllm wants it, and what its environment needs besides.

    Add what the machine wants (--dtype, --max-model-len, --gpu-memory-utilization ...; on a CPU also
    --no-enable-chunked-prefill, without which a seed ends it). In the development mode that
    weight updates need, whoever reaches the port may replace the weights: keep it off other networks.
    """
    words = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--host", "127.0.0.1"]
    words += ["--port", str(port), "--enable-scale-out", "--logprobs-mode", "processed_logprobs"]
    words += ["--worker-extension-cls", "trivium_vllm.Worker"]
    path = [str(_EXTENSION), *filter(None, [os.environ.get("PYTHONPATH")])]
    return words, {"VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": os.pathsep.join(path)}


class _Undone(PolicyError):
    """The server's worker says itself that it failed."""


class Vllm:
    """A Policy behind the vLLM server at `url`, and a Receiver of weights (`weights.publish`, `Subscriber.deliver`).

    At most `slots` requests are in flight, further ones wait. Passing failures are tried again up to `retries` times,
    waiting WAIT, 2 WAIT, 4 WAIT, ...; the seed is the request's own, so that a second try says the same. A server that
    is silent for `timeout` seconds counts as failed. New weights go through `folder` (default: a temporary one), which the
    server's process reads. `version` is that of the weights there, -1 when they were found to be nobody's.

    Raises PolicyError when nobody answers at `url`, Unsupported, naming the option, when the server was not started
    as `command` has it or its layers compute with other weights than they hold, InputError for a folder that is none, and
    for numbers that nobody could serve by.
    """

    def __init__(
        self,
        url: str,
        *,
        renderer: Renderer | None = None,
        name: str = "agent",
        slots: int = 64,
        retries: int = 4,
        timeout: float = 120.0,
        folder: str | Path | None = None,
    ) -> None:
        self.url, self.name, self.slots, self.retries, self.timeout = url.rstrip("/"), name, slots, retries, timeout
        self.folder = Path(folder or tempfile.gettempdir())
        if slots < 1 or retries < 0 or not timeout > 0:
            raise InputError(f"slots are 1 or more, retries 0 or more, timeout above 0: not {slots}, {retries}, {timeout}")
        if not self.folder.is_dir():
            raise InputError(f"{self.folder} is no folder: new weights go to the server through it")
        self._open: tuple[Any, Any, asyncio.Semaphore] | None = None
        with self._understood():
            server = self._inspect()
            self.context, self.dtype, model = server["context"], server["dtype"], server["folder"]
            self.version = self._adopt()
        self.renderer = renderer or Renderer.load(model)

    async def speak(self, view: View, sampling: Sampling) -> Reply:
        """One reply. Raises PolicyError when view and reply do not fit the server's context, the server stays dead or
        refuses, or what it says cannot be trusted; Unsupported for truncated sampling, whose kept mass vLLM does not tell."""
        if sampling.top_k or sampling.top_p < 1:
            raise Unsupported(f"{self.name}: vLLM tells no untruncated logprobs where top_k or top_p truncate; use 0 and 1")
        if len(view.tokens) + sampling.max_tokens > self.context:
            raise PolicyError(
                f"{len(view.tokens)} tokens and a reply of {sampling.max_tokens} do not fit the context of {self.context} "
                f"that vLLM at {self.url} serves"
            )
        client, slots = self._client()
        body = _request(view, sampling, self.renderer.stop_tokens)
        async with slots:
            for attempt in range(self.retries + 1):
                choice, why = await self._ask(client, body)
                if choice is not None:
                    with self._understood():
                        return self._reply(choice, sampling.max_tokens)
                if attempt < self.retries:
                    await asyncio.sleep(WAIT * 2**attempt * (1 + random.random() / 4))
        raise PolicyError(f"{self.name}: vLLM at {self.url} did not answer {self.retries + 1} times, at last: {why}")

    async def _ask(self, client: Any, body: Mapping[str, Any]) -> tuple[dict | None, str]:
        """What was said; or None and why asking again may help."""
        import httpx

        try:
            answer = await client.post("/inference/v1/generate", json=body)
        except httpx.TransportError as error:
            return None, f"{type(error).__name__} {error}".strip()
        if answer.status_code in TRANSIENT:
            return None, _detail(answer)
        if answer.status_code != 200:
            raise PolicyError(f"{self.name}: vLLM at {self.url} refused: {_detail(answer)}")
        with self._understood(answer):
            choice = answer.json()["choices"][0]
            aborted = choice["finish_reason"] == "abort"
        return (None, "somebody aborted the request") if aborted else (choice, "")

    def _reply(self, choice: Mapping[str, Any], most: int) -> Reply:
        """Checked: as many logprobs and versions as tokens, each token's own, ended as was asked."""
        tokens, content = choice["token_ids"] or [], (choice.get("logprobs") or {}).get("content") or []
        versions = self._versions(choice.get("weight_versions"), len(tokens))
        logprobs = [one["logprob"] for one in content if -9999 < one["logprob"] <= 1e-3]  # -9999: vLLM's word for NaN
        if [one["token_id"] for one in content] != tokens or len(logprobs) != len(tokens):
            raise PolicyError(f"vLLM at {self.url}: {len(tokens)} tokens came with {len(logprobs)} sound logprobs of them")
        stops = [token in self.renderer.stop_tokens for token in tokens]
        if not tokens or True in stops[:-1] or not (stops[-1] or len(tokens) == most):
            raise PolicyError(f"vLLM at {self.url} ended a reply after {len(tokens)} tokens ({choice['finish_reason']})")
        return Reply(tokens, [min(0.0, logprob) for logprob in logprobs], versions, [1.0] * len(tokens))

    def _versions(self, spans: Sequence[Mapping[str, Any]] | None, length: int) -> list[int]:
        versions: list[int] = []
        for span in spans or ():
            if not span["version"].isdecimal():
                self.version = -1  # so that a subscriber who gave it these once gives them again
                raise PolicyError(
                    f"vLLM at {self.url} spoke under weights that it calls {span['version']!r}, which nobody published: "
                    "it was started anew, or an update was torn; publish to it again"
                )
            if span["start"] != len(versions):
                break
            versions += [int(span["version"])] * (span["end"] - span["start"])
        if len(versions) != length:
            raise PolicyError(f"vLLM at {self.url} told the version of {len(versions)} tokens of {length}")
        return versions

    def load(self, state: dict[str, torch.Tensor], version: int) -> None:
        """Take over new weights between two steps. Replies under way go on under them, their past computed anew.

        Blocks until the server has them (it is paused meanwhile, and resumed whatever happens). Raises Unsupported when
        the server's dtype cannot hold them, PolicyError when it does not take them (where it still holds the old ones it goes
        on with them, under their version), LawError when it then holds others.
        """
        from trivium.policy.vllm_server.trivium_vllm import digest, widened

        try:
            published = digest(widened(state, self.dtype))
        except ValueError as error:
            raise Unsupported(f"vLLM at {self.url}: {error}") from error
        file = self._write(state, version)
        try:
            self._control("/pause?mode=keep")
            before = self._control("/weight_info", get=True)["weight_version"], self.digest()
            self._label(f"{version}?")
            digest_after = self._take(file, *before)
            self._control("/reset_prefix_cache?reset_running_requests=true")
            if digest_after != published:
                raise LawError(f"version {version} was published, but vLLM at {self.url} holds other weights")
            self._label(str(version))
        finally:
            try:
                self._resume()
            finally:
                file.unlink()
        self.version = version

    def _take(self, file: Path, label: str, digest_before: str) -> str:
        """The digest of what the server holds after it was asked to load `file`. Where it says that it did not, and has what
        it had, that has its label again. (From one that says nothing the new weights may come yet.)"""
        try:
            return self._worker("trivium_load", str(file))["digest"]
        except _Undone:
            if self.digest() == digest_before:
                self._label(label)
            raise

    def _resume(self) -> None:
        """Asked for until it is heard: a server that stays paused answers nobody."""
        for attempt in range(self.retries + 1):
            try:
                self._control("/resume")
                return
            except PolicyError:
                if attempt == self.retries:
                    raise
                time.sleep(WAIT * 2**attempt)

    def digest(self) -> str:
        """Of the tensors that the server really holds (law 10)."""
        return self._worker("trivium_digest")["digest"]

    def logprobs(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logprobs float32 [len - 1] of each token of a probe given those before it, as the server computes them."""
        import torch

        body = {"token_ids": list(tokens), "sampling_params": {"max_tokens": 1, "prompt_logprobs": 0, "detokenize": False}}
        answer = self._control("/inference/v1/generate", body)
        with self._understood():
            logprobs = zip(answer["prompt_logprobs"][1:], tokens[1:], strict=True)
            return torch.tensor([one[str(token)]["logprob"] for one, token in logprobs])

    def _client(self) -> tuple[Any, asyncio.Semaphore]:
        """One client for each event loop: its connections live there."""
        import httpx

        loop = asyncio.get_running_loop()
        if self._open is None or self._open[0] is not loop:
            limits = httpx.Limits(max_connections=self.slots, max_keepalive_connections=self.slots)
            client = httpx.AsyncClient(base_url=self.url, timeout=self.timeout, limits=limits, trust_env=False)
            self._open = (loop, client, asyncio.Semaphore(self.slots))
        return self._open[1:]

    def _inspect(self) -> dict[str, Any]:
        """What the server is. Every option that is missing is an error here, by its name (law 7)."""
        self._control("/is_paused", get=True, missing="VLLM_SERVER_DEV_MODE=1 in its environment")
        server = self._worker("trivium_serves", missing="--worker-extension-cls trivium_vllm.Worker")
        self._resume()  # whoever paused it may be dead; what an update under way says is refused by its label
        if server["logprobs"] != "processed_logprobs":
            self._refuse(f"--logprobs-mode processed_logprobs (it has {server['logprobs']}, which ignores the temperature)")
        if server["workers"] != 1:
            self._refuse(f"one worker only (it has {server['workers']}); start a server for each")
        if server["dies"]:
            self._refuse("--no-enable-chunked-prefill: on a CPU it dies of a seeded request whose prompt it splits")
        if stale := server["stale"]:
            raise Unsupported(
                f"vLLM at {self.url} computes {stale[0]} and {len(stale) - 1} other layers with packed weights that an update "
                "does not reach; turn packing and quantization off"
            )
        body = {"token_ids": [0], "sampling_params": {"max_tokens": 1, "logprobs": 0, "detokenize": False}}
        choice = self._control("/inference/v1/generate", body, missing="--enable-scale-out")["choices"][0]
        if not choice.get("weight_versions"):
            self._refuse("a vLLM that tells weight_versions (0.32 does)")
        return server

    def _adopt(self) -> int:
        """The version that the server has, or 0 for the weights that it was started with."""
        label = self._control("/weight_info", get=True)["weight_version"]
        if label == "default":
            self._label("0")
            return 0
        if not label.rstrip("?").isdecimal():
            raise PolicyError(f"vLLM at {self.url} calls its weights {label!r}, which is no version; start it anew")
        return -1 if label.endswith("?") else int(label)  # somebody's load was torn: nobody published these

    def _label(self, label: str) -> None:
        self._control("/update_weight_version", {"new_version": label})

    def _worker(self, method: str, *arguments: str, missing: str = "") -> dict[str, Any]:
        answer = self._control("/collective_rpc", {"method": method, "args": arguments}, missing=missing)
        with self._understood():
            for result in answer["results"]:
                if "error" in result:
                    raise _Undone(f"vLLM at {self.url} did not do {method}: {result['error']}")
            return answer["results"][0]

    def _control(self, path: str, body: Mapping[str, Any] | None = None, *, get: bool = False, missing: str = "") -> Any:
        """One blocking call, from a new connection. `missing` is what a server lacks that refuses it."""
        import httpx

        try:
            with httpx.Client(timeout=self.timeout, trust_env=False) as client:
                answer = client.get(self.url + path) if get else client.post(self.url + path, json=body)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise PolicyError(f"no vLLM answers at {self.url}{path}: {type(error).__name__} {error}") from error
        if answer.status_code != 200:
            if missing and answer.status_code not in TRANSIENT - {500}:  # of a method that it lacks it says 500
                self._refuse(missing)
            raise PolicyError(f"vLLM at {self.url}{path} refused: {_detail(answer)}")
        with self._understood(answer):
            return answer.json()

    @contextmanager
    def _understood(self, answer: Any = None) -> Generator[None]:
        """PolicyError for an answer that lacks what is read from it inside."""
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            reason = _detail(answer) if answer is not None else f"{type(error).__name__} {error}"
            raise PolicyError(f"{self.name}: {self.url} answers, but not as vLLM does: {reason}") from error

    def _refuse(self, missing: str) -> None:
        raise Unsupported(f"vLLM at {self.url} was started without {missing}; docs/vllm.md has the command")

    def _write(self, state: dict[str, torch.Tensor], version: int) -> Path:
        from safetensors.torch import save_file

        handle, path = tempfile.mkstemp(prefix=f"trivium-{version}-", suffix=".safetensors", dir=self.folder)
        os.close(handle)
        try:
            with files.full_disk():
                save_file({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}, path)
            Path(path).chmod(0o644)
        except BaseException:
            Path(path).unlink()
            raise
        return Path(path)


def _request(view: View, sampling: Sampling, stops: Sequence[int]) -> dict[str, Any]:
    """The seed is the stream's (law 11). The end of a reply is ours to say, whatever the model's folder says."""
    draws = {"temperature": sampling.temperature, "max_tokens": sampling.max_tokens, "logprobs": 0, "detokenize": False}
    ends = {"stop_token_ids": list(stops), "ignore_eos": True}
    seed = int.from_bytes(blake3(repr(view.stream).encode()).digest(length=8), "little") >> 1
    return {"token_ids": list(view.tokens), "sampling_params": {**draws, **ends, "seed": seed}}


def _detail(answer: Any) -> str:
    return f"{answer.status_code} {' '.join(answer.text.split())[:300]}"
