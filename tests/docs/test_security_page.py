"""docs/security.md is one page, and each of its claims has a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text(encoding="utf-8")
CLAIMS = {
    "another machine": ["flows/test_ui_command.py"],
    "another page in your browser": ["browser/test_attacks.py"],
    "an attacker's name for your machine (DNS rebinding)": ["browser/test_attacks.py"],
    "another page that shows the UI in a frame": ["browser/test_attacks.py"],
    "a program of yours: `crl`, `prefect`, a worker": ["flows/test_origin.py"],
    "another user of this machine": ["flows/test_ui_command.py"],
    "an engine and its supervisor": ["unit/engine/test_listener.py"],
    "ranks on one machine": ["faults/test_listening.py"],
    "ranks on several machines": ["faults/test_listening.py"],
    "a vLLM server that a run starts": ["learning/test_vllm.py"],
    "the gateway of programs that you train": ["unit/gateway/test_server.py"],
    "`crl serve`, `crl bank serve`": ["learning/test_serving.py"],
    "Prefect's temporary server": ["faults/test_listening.py"],
    "A model's folder": ["unit/config/test_pretrained.py", "unit/policies/test_untrusted.py"],
    "An embedder's folder": ["unit/policies/test_model_embedder.py"],
    "Any file of a run": [
        "faults/test_hostile_files.py", "unit/run/test_logs.py", "unit/test_limits.py",
        "unit/report/test_view_files.py",
    ],
    "A link": ["unit/run/test_links.py", "unit/run/test_cache.py"],
    "`crl sql`": ["unit/report/test_locked.py", "unit/report/test_asked.py"],
    "Skills and exported agents": ["record/test_skills.py", "unit/serve/test_export.py"],
    "Hidden characters": ["unit/text/test_unicode.py", "record/test_import.py"],
    "A report page": ["browser/test_report_safety.py"],
    "Commands that are printed": ["unit/test_quoted_commands.py"],
}  # fmt: skip
"""The first words of a claim, and the tests of it."""
OTHERS = {
    "damage.md#was-a-record-forged": "unit/run/test_head.py",
    "Only you can read\nthe database": "flows/test_origin.py",
    "Runs choose no command, folder or environment": "flows/test_pool.py",
    "The temporary server of `crl train`": "faults/test_listening.py",
    "`isolate: true`": "worlds/harness/test_isolate.py",
}
"""Claims within a paragraph."""


def test_every_claim_has_a_test_that_is_there() -> None:
    rows = re.findall(r"^\| (.+?) \| ", PAGE, re.MULTILINE)
    read = PAGE.partition("## What is read")[2].partition("\n## ")[0]
    claims = [row for row in rows if row not in ("who", "what")] + re.findall(r"^- \*\*(.+?)\*\*", read, re.MULTILINE)
    assert claims == list(CLAIMS) and read.count("\n- ") == read.count("\n- **")
    for text in OTHERS:
        assert " ".join(text.split()) in " ".join(PAGE.split()), text
    named = {path for paths in CLAIMS.values() for path in paths} | {*OTHERS.values()}
    assert [path for path in sorted(named) if not (ROOT / "tests" / path).is_file()] == []


def test_the_settings_are_those_of_the_code() -> None:
    from flows.origin import LOOPBACK, VARIABLE

    assert f"`{VARIABLE}`" in PAGE and all(name in PAGE for name in LOOPBACK)
