"""Requests to a Prefect server that may be busy, and the pool that tests order mishaps through."""

from __future__ import annotations

import contextlib
from typing import Any

import httpx

from tests.processes import wait_until

CLOSED = (httpx.ReadError, httpx.RemoteProtocolError)
POOL = "crl"


def ask_patiently(http: httpx.Client, method: str, path: str, body: Any = None) -> httpx.Response:
    """One request to a Prefect server, asked again while it is busy (503) or, where that is safe, hangs up."""
    answers: list[httpx.Response] = []

    def answered() -> bool:
        answers.clear()
        with contextlib.suppress(*CLOSED if method == "GET" or path.endswith(("/filter", "/create_flow_run")) else ()):
            answers[:] = [http.request(method, path, json=body)]
        return bool(answers) and answers[0].status_code != 503

    wait_until(answered, lambda: f"{method} {path} is answered: {[each.text[:1000] for each in answers]}", every=0.5)
    return answers[0]


def open_pool(http: httpx.Client) -> None:
    """Have the pool take variables from flow runs, as Prefect's own template does: so tests order mishaps."""
    from prefect.workers.process import ProcessWorker

    body = {"base_job_template": ProcessWorker.get_default_base_job_template()}
    answer = ask_patiently(http, "PATCH", f"/work_pools/{POOL}", body)
    assert answer.is_success, answer.text
