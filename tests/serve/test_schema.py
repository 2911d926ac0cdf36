"""Whatever the OpenAPI document allows, and much that it does not, is answered and never breaks the server."""

from __future__ import annotations

import httpx
import schemathesis
from hypothesis import HealthCheck, given, settings

from tests.serve.house import adding, options, serving
from trivium.harness import Harness, Window
from trivium.policy import Scripted
from trivium.serve.service import Service


def test_no_request_breaks_the_server(renderer, tmp_path):
    service = Service({"agent": Scripted(adding, renderer)}, options(tmp_path), Harness([], Window(2048)))
    with serving(service) as url:
        document = schemathesis.openapi.from_url(f"{url}/openapi.json")
        operations = [result.ok() for result in document.get_all_operations()]
        assert len(operations) > 10
        for operation in operations:
            check(operation)
        assert httpx.get(f"{url}/healthz").status_code == 200


def check(operation) -> None:
    @given(case=operation.as_strategy())
    @settings(max_examples=4, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def ask(case) -> None:
        answer = case.call()
        assert answer.status_code < 500, f"{operation.label}: {answer.text}"
        assert answer.status_code < 400 or answer.json()["error"]["message"]

    ask()
