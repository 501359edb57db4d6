"""Every command of the pages about what leaves a run, run as typed on a real one: quickstart stands for the tiny run of
the tests."""

from __future__ import annotations

import io
import re
import shlex
import sys
from pathlib import Path

import pytest

from crl.cli import main
from crl.report.bank import entries_after
from tests.tiny_run import CONFIG, ROOT, ROUNDS

PAGES = {
    name: (ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in ("bank", "skills", "episodes", "chat")
}


def typed(page: str) -> list[str]:
    """The commands of a page."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]


def test_every_subcommand_is_shown() -> None:
    from crl.cli.bank import app

    shown = {"build", "serve", *(shlex.split(line)[2] for line in typed(PAGES["bank"]))}
    for other in ("(bank_from_chats.md)", "(serve.md)"):
        assert other in PAGES["bank"], "pages that have `build` and `serve` have tests of their own"
    assert shown == {command.name for command in app.registered_commands}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_the_page_run(
    page: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = entries_after(finished, order="uses", limit=1)[0].entry_id
    swap = {
        "quickstart": str(finished),
        "ID": entry,
        "7": "1",
        "12": str(ROUNDS),
        "shrine1": "lake",
        "shrine1=blue": "lake=lake",
        "success AND guided AND round > 3": "guided AND round > 1",
        "skills/shrine1": "skills/lake",
    }
    config = (ROOT / CONFIG).read_text(encoding="utf-8")
    (tmp_path / "conf/prompts").mkdir(parents=True)
    (tmp_path / "conf/prompts/tiny.yaml").write_bytes((ROOT / "conf/prompts/tiny.yaml").read_bytes())
    for name in ("second", "third"):
        (tmp_path / f"conf/{name}.yaml").write_text(config.replace("name: tiny", f"name: {name}"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CRL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(sys, "stdin", io.StringIO("Go to the goal.\n"))
    before = sorted(path.relative_to(finished) for path in finished.rglob("*"))
    for line in typed(PAGES[page]):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([swap.get(word, word) for word in shlex.split(line)[1:]])
        assert not ended.value.code, f"{line}: {capsys.readouterr().err}"
        assert capsys.readouterr().out.strip(), line
    assert sorted(path.relative_to(finished) for path in finished.rglob("*")) == before, "nothing was written"


@pytest.mark.parametrize("page", ["skills", "episodes", "chat"])
def test_a_page_is_short(page: str) -> None:
    assert len(PAGES[page].split()) <= 400
