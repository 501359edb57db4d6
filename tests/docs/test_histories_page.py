"""The page on histories: its command trains, its query finds what was left out, its prompt is one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from crl.config import PromptConfig
from crl.records import Episode, Turn, rows_of
from crl.rollout.prompts import check_prompts
from crl.run.directory import RunDirectory
from tests.tiny_run import ROOT, crl_here

PAGE = (ROOT / "docs/histories.md").read_text(encoding="utf-8")


def test_its_prompt_is_one() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    prompts = {name: PromptConfig(**prompt) for name, prompt in yaml.safe_load(text).items()}
    check_prompts(prompts)
    assert prompts["actor"].summarize is not None


@pytest.mark.slow
def test_its_command_and_its_query(tmp_path: Path) -> None:
    (text,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    train, query = (shlex.split(line)[1:] for line in text.splitlines())
    fewer = ["--rounds", "1", "--set", "method.recipe.warm_start.extractor_episodes=8"]
    crl_here(tmp_path, *train, *fewer)
    turns = rows_of(Turn, (run := RunDirectory.open(tmp_path / "tiny")).read(1, "collect", Turn))
    episodes = rows_of(Episode, run.read(1, "collect", Episode))
    assert "context_limit" not in {row.stop_reason for row in episodes}
    cut = [turn for turn in turns if turn.dropped_turns]
    assert cut and cut[0].episode_id in crl_here(tmp_path, *query).stdout
