"""The report pages of `make ui`: reports, and nothing else."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import httpx
import pytest

from flows.pages import Pages
from tests.processes import PATIENCE_SECONDS, free_port


def test_pages_serve_reports_and_nothing_else(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for name in ("first", "second"):
        (runs / name).mkdir(parents=True)
        (runs / name / "experiment.yaml").write_text("secret")
    (runs / "first" / "report.html").write_text("<p>the report</p>")
    (runs / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "report.html").write_text("secret")
    (tmp_path / "report.html").write_text("secret")
    said: list[str] = []
    with Pages(runs, free_port(), said.append) as pages, httpx.Client(timeout=PATIENCE_SECONDS) as ask:
        assert ask.get(f"{pages.url}/first/report.html").text == "<p>the report</p>"
        listed = ask.get(pages.url).text
        assert "/first/report.html" in listed and "second" not in listed
        outside = ("/first/experiment.yaml", "/second/report.html", "/linked/report.html", "/first", "/report.html")
        for path in (*outside, "/../report.html", "/%2e%2e/report.html", "/first/../../report.html", "//report.html"):
            with socket.create_connection(("127.0.0.1", int(pages.url.rpartition(":")[2]))) as raw:
                raw.sendall(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:1\r\n\r\n".encode())
                answer = raw.makefile("rb").read()
            assert b" 404 " in answer.splitlines()[0] and b"secret" not in answer, path
        # A name that somebody else made resolve to this machine gets nothing.
        assert ask.get(f"{pages.url}/first/report.html", headers={"Host": "evil.example"}).status_code == 403
        # What the example notification sends is said.
        message = {"subject": "train run x: Failed", "body": "why"}
        assert ask.post(f"{pages.url}/notification", json=message).status_code == 200
        assert ask.post(f"{pages.url}/notification", content="subject=x").status_code == 415
        assert said == ["train run x: Failed\nwhy"]


def test_a_folder_that_may_not_be_entered_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_file = Path.is_file
    for name in ("closed", "open"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.html").write_text("<p>the report</p>")

    def refused(path: Path) -> bool:
        if path.parent.name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refused)
    with Pages(tmp_path, free_port(), lambda line: None) as pages, httpx.Client(timeout=PATIENCE_SECONDS) as ask:
        listed = ask.get(pages.url).text
        assert "/open/report.html" in listed and "closed" not in listed
        assert ask.get(f"{pages.url}/closed/report.html").status_code == 404


@pytest.mark.slow
def test_pages_serve_studies_with_the_reports_of_their_runs(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "lab" / "lab-baseline-s1"
    run.mkdir(parents=True)
    (run / "report.html").write_text("<p>a run</p>")
    (run.parent / "study.html").write_text("<p>the study</p>")
    (run.parent / "study.json").write_text("{}")
    with Pages(tmp_path / "runs", free_port(), lambda line: None) as pages:
        assert httpx.get(f"{pages.url}/lab/study.html").text == "<p>the study</p>"
        assert httpx.get(f"{pages.url}/lab/lab-baseline-s1/report.html").text == "<p>a run</p>"
        assert 'href="/lab/study.html"' in httpx.get(pages.url).text
        for path in (
            "/lab/study.json",
            "/lab/lab-baseline-s1/study.html",
            "/lab/lab-baseline-s1/x/report.html",
            "/study.html",
        ):
            assert httpx.get(pages.url + path).status_code == 404, path
