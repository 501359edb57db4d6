"""What the verdicts of a round say about the judge: whether it answers in form, agrees with itself, and reads fairly.

Pure functions; :func:`crl.rounds.health.write_health` writes what they say for every recipe.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from crl.records import Verdict
from crl.rounds.context import StageContext
from crl.rounds.judge import OK, TOP

KEPT = 0.9
"""What an earlier round counts in the next one."""
LEAST_AGREEMENT = 0.7
"""A judge whose agreement with itself is below this by a standard error contradicts itself; random scores agree to two
thirds."""
FEWEST = 8
"""Episodes that were read twice, from which on their agreement says anything. Of so few, a judge that is right in nine
of ten cases has an alarm in one of twenty rounds."""
MOST_FLAWED = 0.05
"""Above this share of answers with a flaw there is an alarm."""
PREFERS = 3.5
"""Standard errors, as of guidance (`alarms.py`)."""
AGREEMENT, FIRST = "judge_agreement", "judge_first"
_SUMS = (
    "judge_agreement_sum", "judge_agreement_count", "judge_first_sum", "judge_first_variance",
    "judge_agreement_squares",
)  # fmt: skip
_TOLD = {
    "truncated": "are cut by the length limit: raise roles.judge.sampling.max_new_tokens",
    "unfinished_thought": "never end their thought: raise roles.judge.sampling.max_new_tokens",
    "no_score": "are no scores but something else",
    "wrong_count": "hold another number of scores than answers were shown",
    "out_of_range": f"have scores out of range (0 to {TOP})",
    "no_answer": "did not come: the judge hangs or is gone (runtime.servers.judge)",
    "refused": "are a refusal of its endpoint (verdicts.output has its words)",
    "prompt_too_long": "could not be asked for, because what is read does not fit: raise roles.judge.context",
}


def judge_metrics(
    verdicts: Sequence[Verdict], previous: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, str]]:
    """Metrics of a round's verdicts, and alarms that name what is wrong with the judge; `previous` as of guidance.

    `judge_agreement`: 1 less the mean difference of the scores of one episode in two readings. `judge_first`: by how
    many standard errors the answer that was read first is the best one of a group more often than any other.
    """
    sums = {name: KEPT ** (1 + (name == _SUMS[3])) * previous.get(name, 0.0) for name in _SUMS}
    if not verdicts:
        return {name: value for name, value in sums.items() if value}, {}
    metrics = {
        "judge_verdicts": float(len(verdicts)),
        "judge_tokens_read": float(sum(row.tokens_read for row in verdicts)),
        "judge_tokens_sampled": float(sum(row.tokens_sampled for row in verdicts)),
    }
    alarms: dict[str, str] = {}
    for reason, count in Counter(row.reason_code for row in verdicts if row.reason_code != OK).items():
        share = metrics[f"judge_{reason}"] = count / len(verdicts)
        if share > MOST_FLAWED:
            alarms[f"judge_{reason}"] = f"{share:.0%} of the judge's answers {_TOLD[reason]}"
    scored = [row for row in verdicts if row.scores]
    both: dict[str, dict[int, float]] = defaultdict(dict)
    for row in scored:
        for episode_id, score in zip(row.episode_ids, row.scores, strict=True):
            both[episode_id][row.reading] = score
        best = [place for place, score in enumerate(row.scores) if score == max(row.scores)]
        if len(row.scores) > 1 and len(best) == 1:
            chance = 1 / len(row.scores)
            sums[_SUMS[2]] += (best[0] == 0) - chance
            sums[_SUMS[3]] += chance * (1 - chance)
    pairs = [scores for scores in both.values() if len(scores) == 2]
    agreed = [1 - abs(scores[0] - scores[1]) for scores in pairs]
    sums[_SUMS[0]] += sum(agreed)
    sums[_SUMS[1]] += len(agreed)
    sums[_SUMS[4]] += sum(each**2 for each in agreed)
    if twice := sums[_SUMS[1]]:
        agreement = metrics[AGREEMENT] = sums[_SUMS[0]] / twice
        error = (max(sums[_SUMS[4]] / twice - agreement**2, 0.0) / twice) ** 0.5
        if agreement + error < LEAST_AGREEMENT and twice >= FEWEST:
            alarms[AGREEMENT] = (
                f"the judge contradicts itself: two readings of the same episodes agree by {agreement:.0%} (bound "
                f"{LEAST_AGREEMENT:.0%}), where random scores would by 67%"
            )
    if sums[_SUMS[3]]:
        lead = metrics[FIRST] = sums[_SUMS[2]] / sums[_SUMS[3]] ** 0.5
        if lead > PREFERS:
            alarms[FIRST] = (
                f"the judge prefers what it reads first: that answer is the best of its group by {lead:.1f} standard "
                "errors too often; mode: absolute shows one at a time"
            )
    return metrics | {name: value for name, value in sums.items() if value}, alarms


def verdicts_read(ctx: StageContext) -> list[Verdict]:
    """The verdicts of the stages of this round that a stage reads."""
    found: list[Verdict] = []
    for read in ctx.stage.reads:
        place = ctx.recipe.resolve(ctx.method, ctx.round, read.stage, read.offset)
        now = place is not None and place[0] == ctx.round
        if place is not None and now and Verdict in ctx.recipe.stage(ctx.method, *place).writes:
            found += ctx.rows(Verdict, read.name)
    return found
