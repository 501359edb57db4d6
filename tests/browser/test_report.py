"""The report page in headless Chromium: it asks for nothing, its numbers are those of SQL, games replay as recorded,
a phone and a keyboard are enough."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Page

from crl.records import Turn
from crl.report.success import wilson
from crl.report.views import query
from tests.browser.opened import Opened
from tests.recipe_runs import OTHERS
from tests.unit.report import builder

pytestmark = pytest.mark.slow
LARGEST_PICTURE = 300_000
PHONE = {"width": 390, "height": 844}


@pytest.fixture(params=["complementary", *OTHERS])
def any_run(request: pytest.FixtureRequest, finished: Path) -> Path:
    """A finished run of each recipe."""
    return finished if request.param == "complementary" else request.getfixturevalue("run_of")(request.param)  # type: ignore[no-any-return]


def rows(run: Path, sql: str) -> list[tuple[Any, ...]]:
    return query(run, sql)[1]


def by_round(run: Path, sql: str) -> dict[str, Any]:
    return {str(row[0]): row[1] for row in rows(run, sql)}


def numbers(found: dict[str, str]) -> dict[str, float]:
    return {number: float(cell) for number, cell in found.items() if cell != "–"}


def test_numbers_of_every_chart_are_those_of_sql(show: Callable[..., Opened], finished: Path) -> None:
    page = show(finished)
    bank = by_round(finished, "SELECT round, count(*) FROM bank GROUP BY round")
    assert {number: int(size) for number, size in page.column("entries in the bank", "entries").items()} == {
        "0": 0, **bank,
    }  # fmt: skip
    for kind, heading in (("add", "add"), ("update", "update")):
        events = by_round(finished, f"SELECT round, count(*) FROM bank_events WHERE kind = '{kind}' GROUP BY round")
        shown = page.column("what became of operations", heading)
        assert events and {number: count for number, count in numbers(shown).items() if count} == events
    malformed = "SELECT round, count_if(verdict = 'malformed') FROM distillations WHERE round > 0 GROUP BY round"
    shown = page.column("what became of operations", "malformed")
    assert {number: count for number, count in numbers(shown).items() if number != "0"} == by_round(finished, malformed)
    added = "SELECT created_round, count(DISTINCT entry_id) FROM bank WHERE created_round > 0 GROUP BY 1"
    shown = page.column("entries that changed", "added")
    assert {number: count for number, count in numbers(shown).items() if count} == by_round(finished, added)
    # Of the bank that was searched: the one of the round before.
    last = "(SELECT max(round) FROM rounds)"
    searched = f"SELECT round + 1, avg(round + 1 - updated_round) FROM bank WHERE round < {last} GROUP BY round"
    ages = by_round(finished, searched)
    assert numbers(page.column("mean age of texts, in rounds", "whole bank")) == pytest.approx(ages, rel=1e-3)
    used = "SELECT c.round, avg(c.round - g.round) FROM credits c JOIN generations g USING (generation_id) GROUP BY 1"
    assert by_round(finished, used)
    assert numbers(page.column("mean age of texts, in rounds", "used")) == pytest.approx(by_round(finished, used))
    for heading, status in (("waiting", "waiting"), ("trained now", "selected")):
        asked = f"SELECT round, count(*) FROM buffer WHERE status = '{status}' AND uses > 0 GROUP BY round"
        shown = page.column("outputs in the training buffer", heading)
        assert {number: count for number, count in numbers(shown).items() if count} == by_round(finished, asked)
    clipped = (
        "SELECT round, sum(value) FROM metrics WHERE stage = 'update_actor' AND name LIKE 'clipped%' GROUP BY round"
    )
    shown = page.column("tokens the objective clipped", "actor")
    assert numbers(shown) == pytest.approx(by_round(finished, clipped), rel=1e-3, abs=1e-9)
    seconds = by_round(finished, "SELECT round, sum(seconds) FROM stages WHERE round > 0 GROUP BY round")
    heads, *found = page.table("seconds per round")
    assert heads[0] == "round" and {row[0]: sum(map(float, row[1:])) for row in found} == pytest.approx(
        seconds, rel=1e-2
    )


def test_usefulness_is_what_the_credits_say(show: Callable[..., Opened], finished: Path) -> None:
    page = show(finished)
    last = rows(finished, "SELECT max(round) FROM credits")[0][0]
    scores = rows(
        finished,
        "SELECT entry_id, text, count(*), avg(outcome) FROM credits "
        f"JOIN (SELECT entry_id, content_digest, text FROM bank_text WHERE round = {last}) "
        "USING (entry_id, content_digest) GROUP BY ALL",
    )
    assert scores
    heads, *found = page.table("entries by the share of their episodes won")
    assert sum(float(cell) for row in found for cell in row[1:]) == len(scores) and heads[0] == "won"
    uses = {row[0]: float(row[1]) for row in page.table("entries by how often they were used")[1:]}
    size = rows(finished, f"SELECT count(*) FROM bank WHERE round = {last}")[0][0]
    assert uses["none"] == size - len(scores) and uses["1"] == sum(count == 1 for _, _, count, _ in scores)
    bounds = [wilson(round(count * (1 + mean) / 2), count) for _, _, count, mean in scores]
    for title, sure in (("Most helpful", [low > 0.5 for low, _ in bounds]),
                        ("Most harmful", [high < 0.5 for _, high in bounds])):  # fmt: skip
        assert max(0, len(page.table(title)) - 1) == min(10, sum(sure)), title
    listed = page.table("Most used")[1:]
    assert len(listed) == min(10, len(scores))
    told = {f"{name} {' '.join(text.split())}": (uses, mean) for name, text, uses, mean in scores}
    for experience, uses, mean, interval, _ in listed:
        text, _, name = " ".join(experience.split()).rpartition(" ")
        assert told[f"{name} {text}"] == (int(uses), pytest.approx(float(mean.replace("−", "-")), abs=0.005))
        low, high = (float(end.replace("−", "-")) for end in interval.split(" … "))
        assert -1 <= low <= float(mean.replace("−", "-")) <= high <= 1


def test_a_game_replays_as_the_record_has_it(show: Callable[..., Opened], finished: Path) -> None:
    page = show(finished)
    played = rows(finished, "SELECT count(*) FROM episodes WHERE stage = 'collect'")[0][0]
    assert page.text("#found") == f"{played} of {played} episodes" and page.page.locator("#list li").count() == played
    episodes = rows(
        finished,
        "SELECT episode_id, turns, experience, entry_id, success, last_observation FROM episodes "
        "WHERE stage = 'collect' AND guided ORDER BY turns DESC, episode_id LIMIT 2",
    )
    for name, count, experience, entry, won, ended in episodes:
        page.open(name)
        turns = rows(
            finished,
            "SELECT observation, output, action, valid, feedback FROM turns "
            f"WHERE stage = 'collect' AND episode_id = '{name}' ORDER BY turn",
        )
        assert len(turns) == count
        for number, (observation, output, action, valid, feedback) in enumerate(turns, start=1):
            assert page.text("#turn") == f"Turn {number} of {count}"
            assert page.text("#observation") == observation and page.text("#output") == output
            assert page.text("#action") == (f"Action: {action}" if valid else "No legal action")
            assert page.text("#feedback") == (feedback or "")
            assert bool(page.text("#result")) == (number == count)
            assert page.page.locator("#ending").is_visible() == (number == count)
            if number < count:
                page.page.get_by_role("button", name="Next →").click()
        assert ("won" if won else "lost") in page.text("#result")
        assert page.text("#last") == ended
        assert page.text("#guide blockquote") == experience and entry in page.text("#guide")
        [(similarity, score)] = rows(
            finished, f"SELECT similarity, score FROM retrievals WHERE chosen AND episode_id = '{name}'"
        )
        assert f"similarity{similarity:.3f}" in page.text("#guide")
        assert f"score (eq. 6){score:.3f}" in page.text("#guide")
        [(verdict, output)] = rows(
            finished,
            "SELECT verdict, output FROM distillations JOIN generations USING (generation_id) "
            f"WHERE episode_id = '{name}'",
        )
        assert page.texts("#distilled > p > b") == [verdict] and page.texts("#distilled details pre") == [output]
        asked = rows(
            finished,
            "SELECT o.kind, o.text, e.kind, e.reason FROM operations o JOIN distillations USING (distillation_id) "
            f"JOIN bank_events e USING (operation_id) WHERE episode_id = '{name}' ORDER BY o.index",
        )
        assert page.texts("#distilled .change > b") == [kind for kind, *_ in asked]
        assert page.texts("#distilled .change .text") == [text for _, text, *_ in asked if text is not None]
        for told, (_, _, became, _) in zip(page.texts("#distilled .change"), asked, strict=True):
            assert ("rejected" in told) == (became == "rejected")


def test_an_episode_of_several_sequences_shows_all_of_them(show: Callable[..., Opened], tmp_path: Path) -> None:
    names = [f"several-collect{end}" for end in ("", "-s1", "-s2")]
    several = dataclasses.replace(
        builder.episode(1, 0, guided=True, success=True), episode_id="several", generation_ids=names
    )
    turns = [
        Turn(
            episode_id="several", turn=number, observation="@", output="go", action="go", valid=True, feedback=None,
            generation_id=name, first_token=at, last_token=at + 1, stop_reason="end_of_turn", dropped_turns=dropped,
            dropped_tokens=2 * dropped,
        )
        for number, (name, at, dropped) in enumerate([(names[0], 1, 0), (names[0], 3, 0), (names[1], 2, 1)])
    ]  # fmt: skip
    masks = {names[0]: [0, 1, 0, 1], names[1]: [0, 0, 1], names[2]: [0, 0]}
    records = [
        dataclasses.replace(
            builder.generation(name, 1, role="actor", prompt="p", output="o"),
            stage="collect", kind="episode", token_ids=[7] * len(mask), loss_mask=mask, logprobs=[0.0] * len(mask),
        )
        for name, mask in masks.items()
    ]  # fmt: skip
    one = dataclasses.replace(builder.episode(1, 1, guided=False, success=False), turns=1)
    builder.write_stage(tmp_path, 1, "collect", [[several, one], turns, records])
    page = show(tmp_path)
    page.open("several")
    assert page.texts("#sequences .id") == names and page.page.locator("#sequences").is_visible()
    assert page.texts("#sequences .note") == [
        "turns 1, 2 · 4 tokens, 2 of them trained",
        "turns 3 · 3 tokens, 1 of them trained · without turns 1–1, 2 tokens",
        "no turn · 2 tokens, 0 of them trained",
    ]  # fmt: skip
    for number, sequence in ((1, 1), (2, 1), (3, 2)):
        assert page.text("#turn") == f"Turn {number} of 3, sequence {sequence}"
        if number < 3:
            page.page.get_by_role("button", name="Next →").click()
    page.open(one.episode_id)
    assert not page.page.locator("#sequences").is_visible()


@pytest.mark.parametrize("recipe", OTHERS)
def test_games_of_other_recipes_replay(show: Callable[..., Opened], run_of: Callable[[str], Path], recipe: str) -> None:
    run = run_of(recipe)
    page = show(run)
    listed = page.page.locator("#list li").count()
    assert page.text("#found") == f"{listed} of {listed} episodes" and listed > 0
    name = str(page.page.locator("#list button").first.get_attribute("data-episode"))
    page.open(name)
    [(turns, observation)] = rows(
        run,
        "SELECT count(*), min_by(observation, turn) FROM turns WHERE stage NOT LIKE 'evaluate%' "
        f"AND episode_id = '{name}'",
    )
    assert page.text("#turn") == f"Turn 1 of {turns}" and page.text("#observation") == observation


def test_filters_and_search_find_what_sql_finds(show: Callable[..., Opened], finished: Path) -> None:
    page = show(finished)

    def expect(where: str) -> None:
        found = rows(finished, f"SELECT episode_id FROM episodes WHERE stage = 'collect' AND {where}")
        listed = page.page.eval_on_selector_all("#list button", "(all) => all.map((each) => each.dataset.episode)")
        assert sorted(listed) == sorted(name for (name,) in found), where

    page.choose("Round", "2")
    expect("round = 2")
    page.choose("Experience", "guided")
    expect("round = 2 AND guided")
    page.choose("Experience", "free")
    page.choose("Outcome", "won")
    expect("round = 2 AND NOT guided AND success")
    page.page.get_by_role("button", name="Clear").click()
    expect("true")
    [(entry,)] = rows(finished, "SELECT entry_id FROM credits ORDER BY entry_id LIMIT 1")
    page.page.get_by_label("Search").fill(entry)
    found = page.page.locator("#list li").count()
    assert found >= rows(finished, f"SELECT count(*) FROM credits WHERE entry_id = '{entry}'")[0][0]
    page.page.get_by_label("Search").fill("no such text anywhere")
    assert page.text("#found").startswith("0 of ")
    # An entry in the tables of usefulness leads to the games that it is in.
    wanted = page.texts("#usefulness td a")[0]
    page.page.locator("#usefulness td a").first.click()
    # The page hears of its new address after the click.
    page.page.wait_for_function(
        "(wanted) => [...document.querySelectorAll('input')].some((each) => each.value === wanted)", arg=wanted
    )
    assert page.page.locator("#list li").count() >= 1
    assert page.text("#guide dd") == wanted or wanted in page.text("#distilled")


def test_the_keyboard_is_enough(show: Callable[..., Opened], finished: Path) -> None:
    page = show(finished)
    name, count = rows(
        finished, "SELECT episode_id, turns FROM episodes WHERE stage = 'collect' ORDER BY turns DESC, 1 LIMIT 1"
    )[0]
    press = page.page.keyboard.press
    page.open(name)
    assert page.text("#turn") == f"Turn 1 of {count}" and count > 2
    for key, turn in (("ArrowRight", 2), ("ArrowRight", 3), ("ArrowLeft", 2), ("End", count), ("ArrowRight", count),
                      ("Home", 1), ("ArrowLeft", 1)):  # fmt: skip
        press(key)
        assert page.text("#turn") == f"Turn {turn} of {count}", key
    press("ArrowDown")
    below = page.page.evaluate("document.activeElement.dataset.episode")
    assert below != name and page.text("#title") == below
    press("ArrowUp")
    assert page.text("#title") == name
    # The slider, and the buttons by Tab and Enter.
    page.page.get_by_role("slider", name="Turn").focus()
    press("ArrowRight")
    assert page.text("#turn") == f"Turn 2 of {count}"
    page.page.get_by_role("button", name="Next →").focus()
    press("Enter")
    assert page.text("#turn") == f"Turn 3 of {count}"
    outline = page.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "what has the focus is seen"
    page.page.locator("#trail button").nth(1).click()
    press("ArrowRight")
    assert page.text("#turn") == f"Turn 3 of {count}"
    unnamed = page.page.evaluate(
        "[...document.querySelectorAll('button, input, select')].filter((each) =>"
        " !(each.textContent.trim() || each.ariaLabel || each.labels?.length)).length"
    )
    assert unnamed == 0, "every control has a name"


def test_play_runs_to_the_end_and_stops(show: Callable[..., Opened], finished: Path) -> None:
    page = show(finished)
    shortest = "SELECT episode_id, turns FROM episodes WHERE stage = 'collect' AND turns > 1 ORDER BY turns LIMIT 1"
    episode, turns = rows(finished, shortest)[0]
    page.open(episode)
    page.page.get_by_role("button", name="Play").click()
    page.page.get_by_role("button", name="Pause").wait_for()
    page.page.get_by_text(f"Turn {turns} of {turns}").wait_for()
    page.page.get_by_role("button", name="Play").wait_for()


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_a_phone_and_a_desk_show_all_of_it(show: Callable[..., Opened], any_run: Path, width: int) -> None:
    page = show(any_run, viewport=PHONE | {"width": width}, has_touch=True)
    page.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert page.page.evaluate("document.documentElement.scrollWidth") <= width
    small = page.page.evaluate(
        "[...document.querySelectorAll('.controls button, #list button, .filters button')]"
        ".filter((each) => each.getBoundingClientRect().height < 36).length"
    )
    assert small == 0 or width > PHONE["width"], "fingers find every button"


def test_on_paper_there_are_figures_and_no_controls(show: Callable[..., Opened], any_run: Path) -> None:
    page = show(any_run, color_scheme="dark")
    page.page.emulate_media(media="print")
    assert page.page.locator("button:visible, input:visible, select:visible, nav:visible").count() == 0
    assert page.page.locator("svg:visible").count() == page.page.locator("svg").count()
    assert page.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.page.pdf().startswith(b"%PDF")


def test_without_a_script_everything_but_the_replay_is_there(show: Callable[..., Opened], any_run: Path) -> None:
    page = show(any_run, java_script_enabled=False)
    assert page.page.locator("#browser").is_hidden() and page.page.locator("svg").first.is_visible()
    assert "needs JavaScript" in page.page.locator("noscript").inner_text()


def test_pictures(show: Callable[..., Opened], finished: Path, pictures: Path) -> None:
    """The pictures of docs/report.md: `CRL_PICTURES=docs/pictures`, and the run they show in `CRL_PICTURES_RUN`."""
    run = Path(os.environ.get("CRL_PICTURES_RUN", finished))
    page = show(run, viewport={"width": 1280, "height": 1000}).page
    page.locator("#play").scroll_into_view_if_needed()
    _keep(page.screenshot(full_page=True, clip=_down_to(page, "#bank h3")), pictures / "report.png")
    _keep(page.locator("#usefulness").screenshot(), pictures / "report-usefulness.png")
    page.locator("#next").click()
    page.mouse.move(0, 0)
    _keep(page.locator("#episodes").screenshot(), pictures / "report-episodes.png")
    phone = show(run, viewport=PHONE, device_scale_factor=2).page
    shots = [phone.screenshot()]
    for place in ("#bank", "#replay"):
        phone.locator(place).evaluate("(each) => each.scrollIntoView()")
        shots.append(phone.screenshot())
    beside = Image.new("RGB", (3 * 2 * PHONE["width"] + 2 * 40, 2 * PHONE["height"]), "white")
    for number, shot in enumerate(shots):
        beside.paste(Image.open(io.BytesIO(shot)), (number * (2 * PHONE["width"] + 40), 0))
    beside.thumbnail((1280, 1280))
    buffer = io.BytesIO()
    beside.save(buffer, "PNG")
    _keep(buffer.getvalue(), pictures / "report-phone.png")


def _down_to(page: Page, selector: str) -> dict[str, float]:
    """The page from its top to where an element begins."""
    top = page.locator(selector).first.evaluate("(each) => each.getBoundingClientRect().top + scrollY")
    return {"x": 0, "y": 0, "width": 1280, "height": top - 10}


def _keep(picture: bytes, path: Path) -> None:
    """Save it with few colors: it lies in the repository."""
    few = (
        Image.open(io.BytesIO(picture)).convert("RGB").quantize(128, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    )
    few.save(path, optimize=True)
    assert path.stat().st_size <= LARGEST_PICTURE
