"""Validates one committed round: by Great Expectations, table for table, and by the compiled pass once more.

Rows are read as they are on the disk now, also where they are not those that were committed: this is what finds out.
Nothing was committed that broke a rule, so whatever is found here is an alarm, and so is every difference between
Great Expectations and the compiled pass. The verdict goes to `validations/`, the pages to the Data Docs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from crl.checks.compiled import broken, connected
from crl.checks.native import exception_of, failures, validate, version
from crl.checks.pages import Page, Validated, write_site
from crl.checks.stage import OwnSuites, numbered, own_expectations
from crl.checks.suites import SQL, Config, applying, key_of, row_types, sentence_of, suite_of, suite_with_own
from crl.errors import BadInput
from crl.records import Row
from crl.report.data_docs import SITE
from crl.rounds.recipe import recipe_in
from crl.run.cache import CACHE, cached
from crl.run.directory import RunDirectory
from crl.run.files import sha256_file
from crl.run.refused import refused
from crl.run.validations import TableVerdict, Verdict, keep_verdict, load_verdict, stage_digests

_KEPT_ROUNDS = 10
"""Newest rounds with pages in the Data Docs; a verdict is kept of every round."""


def validate_round(run_path: Path, round_number: int, own: OwnSuites | None = None) -> Verdict:
    """Validate a round, publish its Data Docs and keep its verdict. Raises as :func:`validate_rounds`."""
    return validate_rounds(run_path, [round_number], own, rows=False)[0]


def validate_rounds(
    run_path: Path, rounds: Sequence[int] = (), own: OwnSuites | None = None, *, rows: bool = True
) -> list[Verdict]:
    """Validate some rounds (default: the newest) by the project's suites and a user's own, and publish the Data Docs.

    With `rows` the pages have metrics and rows of every expectation, and tables that were refused are among them;
    without, only of those that are broken. Raises BadInput where there is no such round, RecordDamaged, DiskFull.
    """
    run, own = RunDirectory.open(run_path), own or {}
    recipe_in(run)  # with it come its own row types, and their rules
    existing = run.rounds()
    wanted = sorted(set(rounds)) or existing[-1:]
    kept = refused(run.path, row_types().get) if rows else {}
    if not (wanted or kept) or not set(wanted) <= set(existing):
        raise BadInput(
            f"there is no round {', '.join(str(each) for each in wanted if each not in existing) or 'yet'}",
            expected=f"rounds up to {existing[-1]}" if existing else "a run with a committed stage",
            where=str(run_path),
        )
    validated: list[Validated] = []
    verdicts = []
    for number in wanted:
        began, stages = time.monotonic(), stage_digests(run.path, number)
        found = [each for stage in run.complete_stages(number) for each in _validated(run, number, stage, own, rows)]
        tables = tuple(table for table, _ in found)
        validated += [page for _, page in found if page is not None]
        verdict = Verdict(
            round=number,
            outcome="passed" if all(each.passed for each in tables) else "failed",
            stages=stages,
            tables=tables,
            great_expectations=version(),
            seconds=round(time.monotonic() - began, 3),
            megabytes=round(psutil.Process().memory_info().rss / 1e6, 1),
        )
        verdicts.append(verdict)
        keep_verdict(run.path, verdict)
    for (number, stage), written in kept.items():
        if not run.is_complete(number, stage):
            tables_of = numbered(written)
            validated += [_page(number, stage, name, tables_of, own, rows, committed=False) for name in tables_of]
    _publish(run, validated, own)
    return verdicts


def native_rules(table: str, written: Iterable[str]) -> list[Config]:
    """What Great Expectations is asked for of the project's rules: all that apply."""
    return applying(suite_of(table)["expectations"], frozenset(written))


def _validated(
    run: RunDirectory, number: int, stage: str, own: OwnSuites, rows: bool
) -> Iterator[tuple[TableVerdict, Validated | None]]:
    """What is found in every table of a stage; no page of one that cannot be read."""
    written: dict[type[Row], pa.Table] = {}
    changed: dict[str, str] = {}
    types = row_types()
    for name, recorded in run.manifest(number, stage).digested.files.items():
        row_type, path = types.get(Path(name).stem), run.stage_path(number, stage) / name
        if not name.endswith(".parquet") or row_type is None:
            continue
        try:
            if sha256_file(path) != recorded.sha256:
                changed[row_type.table] = f"{name} is not the file that was committed: `crl verify` says more"
            written[row_type] = pq.ParquetFile(path).read()
        except (OSError, pa.ArrowException) as error:
            told = f"{name} cannot be read: {str(error).splitlines()[0]}"
            yield TableVerdict(
                stage=stage, table=row_type.table, rows=0, rules=0, queries=0, only_compiled=0, passed=False,
                broken=(told,), alarms=(told,),
            ), None  # fmt: skip
    tables = numbered(written)
    with connected(tables) as connection:
        for name in tables:
            page = _page(number, stage, name, tables, own, rows)
            found = _compiled(connection, name, tables)
            alarms = [changed[name]] if name in changed else []
            yield _compared(stage, name, page, found, frozenset(tables), alarms), page


def _page(
    number: int,
    stage: str,
    name: str,
    tables: Mapping[str, pa.Table],
    own: OwnSuites,
    rows: bool,
    *,
    committed: bool = True,
) -> Validated:
    """What Great Expectations finds in a table; where it finds something broken, with the rows.

    An expectation that it could not evaluate breaks no committed table: the compiled pass evaluated it.
    """
    rules = [*native_rules(name, tables), *own_expectations(own.get(name), tables[name].num_rows)]
    result = validate(name, key_of(name), rules, tables, rows=rows)
    if not rows and any(not each.success for each in _evaluated(result)):
        result = validate(name, key_of(name), rules, tables)
    results = _evaluated(result) if committed else result.results
    sentences = failures(name, key_of(name), results, tables[name])
    page = Page(number, stage, name, tables[name].num_rows, len(result.results), not sentences, committed)
    return Validated(page, result, sentences)


def _evaluated(result: Any) -> list[Any]:
    """Results of the expectations that Great Expectations could evaluate."""
    return [each for each in result.results if exception_of(each.exception_info) is None]


def _compiled(connection: duckdb.DuckDBPyConnection, name: str, tables: Mapping[str, pa.Table]) -> dict[str, int] | str:
    """Broken rows by rule, as the compiled pass counts them; why it could not."""
    rules = applying(suite_of(name)["expectations"], frozenset(tables))
    try:
        return {_identity(rule): count for rule, count in broken(connection, name, tables[name], rules)}
    except (duckdb.Error, pa.ArrowException, KeyError) as error:
        return f"the compiled rules could not be checked: {str(error).splitlines()[0]}"


def _compared(
    stage: str,
    name: str,
    validated: Validated,
    compiled: dict[str, int] | str,
    written: frozenset[str],
    alarms: list[str],
) -> TableVerdict:
    """The verdict about a table, and where Great Expectations and the compiled pass do not say the same."""
    results = {_identity(_config(each)): each for each in validated.result.results}
    unknown = isinstance(compiled, str)
    counts = {} if isinstance(compiled, str) else compiled
    rules = {_identity(rule): f"'{sentence_of(rule)}'" for rule in applying(suite_of(name)["expectations"], written)}
    only_compiled = 0
    for identity, rule in rules.items():
        result, count = results.get(identity), counts.get(identity, 0)
        raised = result is not None and exception_of(result.exception_info) is not None
        only_compiled += raised
        if result is None:
            alarms.append(f"Great Expectations was not asked for {rule}: its suite is weaker than the compiled rules")
        elif count and (raised or not result.success):
            alarms.append(f"{rule} held at the commit and is broken in {count} rows now")
        elif count:
            alarms.append(f"Great Expectations passes {rule}, which the compiled pass finds broken in {count} rows")
        elif not raised and not result.success and not unknown:
            alarms.append(f"Great Expectations finds {rule} broken, which the compiled pass lets pass")
    if isinstance(compiled, str):
        alarms.append(compiled)
    for identity, result in results.items():
        if identity not in rules and not result.success:
            rule = sentence_of(_config(result))
            alarms.append(f"'{rule}', a rule of your own, does not hold in rows that were committed")
    evaluated = _evaluated(validated.result)
    return TableVerdict(
        stage=stage,
        table=name,
        rows=validated.page.rows,
        rules=len(evaluated),
        queries=sum(_config(each)["type"] == SQL for each in evaluated),
        only_compiled=only_compiled,
        passed=validated.page.passed,
        broken=tuple(validated.broken),
        alarms=tuple(alarms),
    )


def _config(result: Any) -> Config:
    config: Config = result.expectation_config.to_json_dict()
    return config


def _identity(config: Config) -> str:
    """What tells an expectation from others, however it was written: Great Expectations makes 1.0 of 1."""
    kwargs = {name: _plain(value) for name, value in config["kwargs"].items() if name != "batch_id"}
    return json.dumps([config["type"], kwargs], sort_keys=True, default=str)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _publish(run: RunDirectory, validated: Sequence[Validated], own: OwnSuites) -> None:
    """Write the Data Docs anew: these pages, and those of the newest rounds that are there already."""
    now = {each.page.round for each in validated}
    site = run.path / CACHE / SITE
    earlier: list[Page] = []
    for number in [each for each in run.rounds() if each not in now][-_KEPT_ROUNDS:]:
        verdict = load_verdict(run.path, number)
        pages = [] if verdict is None else [_page_of(number, table) for table in verdict.tables]
        earlier += [page for page in pages if (site / page.file).is_file()]
    suites = {
        table: suite_with_own(table, own)
        for table in dict.fromkeys([*(each.page.table for each in validated), *(each.table for each in earlier)])
    }

    def write(directory: Path) -> None:
        write_site(directory, run.experiment_name, validated, suites, earlier=earlier, site=site)

    cached(run.path, SITE, write, again=True)


def _page_of(number: int, table: TableVerdict) -> Page:
    return Page(number, table.stage, table.table, table.rows, table.rules + table.only_compiled, table.passed)
