"""What is wrong with a round: pure functions from its metrics to alarms.

- *Collapse*: kinds of a run that has stopped learning, each named once its sign was present for some rounds in a row:
  outputs that are never scored win, all rewards of a batch are equal and few games are won, an actor frozen or dead.
  The signs so far are carried by the metrics of the round before, so a resumed run knows it too. Where a method says
  what to do then (`on_collapse`), success that falls is one more kind, and there is a warning before any is named.
- *Form*: whether what the models write can be taken at all. An actor whose turns name no legal action, or end at the
  length limit, learns from noise; so does an extractor whose outputs are cut.
- *Guidance*: whether experience misleads, by guided rollouts against unguided ones of the same groups. What one round
  says is noise, and what was true ten rounds ago is history: the difference of every round counts :data:`KEPT` times as
  much in the next one.
- *Mismatch*: why sampler and trainer may disagree about tokens of the same weights, the likeliest cause first. The ids
  of a record are read by both as they are, the files of the base model (weights, config, tokenizer, template) are
  proven by their digest whenever they are loaded, both hide the same ids that are no tokens, and tokens of older
  weights are not counted. So a template, a tokenizer or an earlier round is no cause. What is left is who computes
  (another engine), how it computes (a model's own code, noise, a router), with what (a checkpoint that changed), and
  last of all how exactly: two passes in bfloat16 differ by some 0.07 nats, a divergence of some 0.004 and far
  below the bound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from crl.config import RoleConfig
from crl.config.roles import TransformersEngine
from crl.credit.uses import usable
from crl.protocols import StopReason
from crl.records import Episode, Metric
from crl.text.unicode import REPLACEMENT

Metrics = dict[str, float]
Guard = Callable[[bool], tuple[Metrics, dict[str, str]]]
"""From whether a run has collapsed to metrics, and alarms by their names."""
ROUNDS = 5
"""Rounds in a row with the sign of a kind until it is named."""
WITHOUT_EXPERIENCE = 0.8
"""Above this share of malformed and `return` outputs the extractor writes next to nothing that is ever scored."""
ONE_TEXT = 0.8
"""Above this share one text, not known to be right, makes up most experiences."""
BEST_SUCCESS = "best_success"
WARNED = 2
"""Rounds in a row with the sign of a kind until there is an early warning of it."""
FALLS = 4.0
"""Standard errors. Where success stays as it is, one run of 200 rounds in a hundred is behind its best by more for
:data:`ROUNDS` rounds in a row, and six get a warning (9,000 drawn ones, 4 to 16 tasks per round)."""
FEWEST_ROUNDS = 10
"""With fewer rounds, how far success is from its best says nothing."""
FALL, WARNING, COLLAPSED = "success_fall", "collapse_warning", "collapsed"
_LATELY, _BEST_LATELY = "success_lately", "success_lately_best"
_SUM, _WEIGHT, _SQUARES = "success_sum", "success_weight", "success_squares"
_CHANGES, _COUNT = "success_changes", "success_rounds"
_OF_FALLS = (_SUM, _WEIGHT, _SQUARES, _CHANGES, _COUNT, _BEST_LATELY)
MOSTLY_WON = 0.5
"""From this success on there may be nothing left that experiences could add, so equal rewards that are no losses are no
sign: the best run of research/falling.md (0.82 at its end) had such rewards for its last rounds."""
FEWEST_VALID = 0.95
"""Below this share of turns with a legal action there is an alarm."""
MOST_CUT = 0.05
"""Above this share of turns, or of extractor outputs, that the length limit ended, there is one."""
KEPT = 0.8
MISLEADS = -3.5
"""Standard errors. Without any effect one run of 60 rounds in a hundred gets there (4,000 drawn ones, 4 to 64 rollouts
of each kind per round); on lakes, where three of four experiences shown were wrong, all eight trained runs got there
between rounds 4 and 8."""
SUM, VARIANCE, LEAD = "guidance_sum", "guidance_variance", "guidance_lead"
MOST_MISMATCH_KL = 0.015
"""Above this divergence of sampler and trainer there is an alarm; prime-rl requires less of a model it takes up."""
_MISMATCH = "_mismatch_kl"
_NOISE = ("dropout", "pdrop", "jitter")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_FLOAT = "float32"


@dataclass(frozen=True)
class Kind:
    """One way to collapse."""

    name: str
    text: str
    role: str | None
    """Role that must be trained in the round for the sign to mean anything; None: any."""
    needs: tuple[str, ...]
    """Metrics it looks at: a round without them (no full batch, no experience) says nothing, for or against."""
    sign: Callable[[Mapping[str, float]], bool]


KINDS = (
    Kind(
        "without_experiences",
        f"the extractor writes no experiences: more than {WITHOUT_EXPERIENCE:.0%} of its outputs are malformed or "
        "return",
        None,
        ("share_without_experience",),
        lambda of: of["share_without_experience"] > WITHOUT_EXPERIENCE,
    ),
    Kind(
        "one_text",
        f"one text is more than {ONE_TEXT:.0%} of the new experiences or reflections",
        None,
        ("experiences_one_text",),
        lambda of: of["experiences_one_text"] > ONE_TEXT,
    ),
    Kind(
        "equal_rewards",
        "no update of the extractor is possible: all rewards of its full batches are equal",
        "extractor",
        ("extractor_without_gradient", "extractor_reward_mean", "success"),
        lambda of: (
            of["extractor_without_gradient"] == 1.0 and (of["extractor_reward_mean"] < 0 or of["success"] < MOSTLY_WON)
        ),
    ),
    Kind(
        "without_success",
        "no episode succeeds any more",
        "actor",
        ("success", BEST_SUCCESS),
        lambda of: of["success"] == 0.0 and of[BEST_SUCCESS] > 0.0,
    ),
    Kind(
        "without_variance",
        "no update of the actor is possible: all rewards of each baseline are equal, and not all episodes succeed",
        "actor",
        ("success", "actor_groups_equal"),
        # A step all the same is that of another loss, such as self-distillation's.
        lambda of: of["actor_groups_equal"] == 1.0 and of["success"] < 1.0 and not of.get("actor_stepped"),
    ),
    Kind(
        "falling",
        f"success is lately more than {FALLS:g} standard errors below its best",
        None,
        (FALL,),
        lambda of: of[FALL] > FALLS,
    ),
)


def counters() -> set[str]:
    """Names of the metrics that are carried from round to round to count the signs of each kind."""
    return {f"{kind.name}_{what}" for kind in KINDS for what in ("rounds", "since")} | {*_OF_FALLS}


def collapse_metrics(
    metrics: Mapping[str, float], previous: Mapping[str, float], trained: Set[str], *, round: int
) -> tuple[Metrics, list[str]]:
    """(metrics to carry on, what to say about every kind that is present) after a round.

    `metrics` are those of the round, `previous` all of this stage's in the round before (empty before the first),
    `trained` the roles this round trains. Of each kind with a sign `<kind>_rounds` counts the rounds in a row and
    `<kind>_since` is the first of them.
    """
    carried: Metrics = {}
    if "success" in metrics or BEST_SUCCESS in previous:
        carried[BEST_SUCCESS] = max(metrics.get("success", 0.0), previous.get(BEST_SUCCESS, 0.0))
    seen = {**metrics, **carried}
    told = []
    for kind in KINDS:
        rounds, since = (previous.get(f"{kind.name}_{what}", 0.0) for what in ("rounds", "since"))
        if (kind.role is None or kind.role in trained) and all(name in seen for name in kind.needs):
            present = kind.sign(seen)
            since = (since if rounds else float(round)) if present else 0.0
            rounds = rounds + 1 if present else 0.0
        if not rounds:
            continue
        carried |= {f"{kind.name}_rounds": rounds, f"{kind.name}_since": since}
        if rounds >= ROUNDS:
            told.append(f"{kind.text}, since round {since:.0f}")
    return carried, told


def fall_metrics(metrics: Mapping[str, float], previous: Mapping[str, float]) -> Metrics:
    """How far success is behind its best, from the metrics of a round and those of the round before (empty: anew).

    `success_lately` is the mean of the rounds, each counting :data:`KEPT` times as much in the next one; `success_fall`
    how far it is below the best it was, in standard errors. The noise of a round is taken from how much success changes
    from one round to the next, so it is that of whole rounds, whose episodes share tasks.
    """
    if "success" not in metrics:
        return {name: previous[name] for name in _OF_FALLS if name in previous}
    success = metrics["success"]
    count = previous.get(_COUNT, 0.0) + 1
    change = success - previous.get("success", success) if count > 1 else 0.0
    found: Metrics = {
        _SUM: KEPT * previous.get(_SUM, 0.0) + success,
        _WEIGHT: KEPT * previous.get(_WEIGHT, 0.0) + 1,
        _SQUARES: KEPT**2 * previous.get(_SQUARES, 0.0) + 1,
        _CHANGES: previous.get(_CHANGES, 0.0) + change**2,
        _COUNT: count,
    }
    found[_LATELY] = found[_SUM] / found[_WEIGHT]
    if count >= FEWEST_ROUNDS:
        found[_BEST_LATELY] = max(found[_LATELY], previous.get(_BEST_LATELY, 0.0))
        variance = found[_CHANGES] / (count - 1) / 2  # a change is the difference of two rounds
        error = (2 * variance * found[_SQUARES]) ** 0.5 / found[_WEIGHT]
        found[FALL] = (found[_BEST_LATELY] - found[_LATELY]) / error if error else 0.0
    return found


def warning_metrics(carried: Mapping[str, float]) -> tuple[Metrics, dict[str, str]]:
    """`collapse_warning`: the rounds in a row with the sign of a kind, as a share of those after which it is named, of
    the kind that has most; an alarm from :data:`WARNED` rounds on."""
    rounds = {kind: carried.get(f"{kind.name}_rounds", 0.0) for kind in KINDS}
    warned = [
        f"{kind.text}, since round {carried[f'{kind.name}_since']:.0f}"
        for kind, count in rounds.items()
        if WARNED <= count < ROUNDS
    ]
    told = f"early warning, a collapse after {ROUNDS} rounds in a row: {'; '.join(warned)}"
    metrics = {WARNING: min(max(rounds.values()) / ROUNDS, 1.0)}
    return metrics, {WARNING: told} if warned else {}


def health_metrics(
    metrics: Mapping[str, float],
    previous: Mapping[str, float],
    trained: Set[str],
    *,
    round: int,
    stage: str = "health",
    alarms: Mapping[str, str] | None = None,
    guard: Guard | None = None,
) -> list[Metric]:
    """The rows of a round's stage: its metrics with the alarms of form, what is carried on, and
    `collapsed`: how many kinds are present, named in its alarm. `alarms` are those of other metrics, by name.

    With a `guard`, also an early warning, the kind of collapse that falling success is, and the metrics and alarms that
    it gives.
    """
    if guard is not None:
        metrics = {**metrics, **fall_metrics(metrics, previous)}
    carried, told = collapse_metrics(metrics, previous, trained, round=round)
    alarmed = {**form_alarms(metrics), **(alarms or {})}
    if told:
        alarmed[COLLAPSED] = f"this run has collapsed: {'; '.join(told)}"
    values = {**metrics, **carried, COLLAPSED: float(len(told))}
    if guard is not None:
        for more, warned in (warning_metrics(carried), guard(bool(told))):
            values, alarmed = values | more, alarmed | warned
    return [
        Metric(round=round, stage=stage, name=name, value=value, alarm=alarmed.get(name))
        for name, value in values.items()
    ]


def turn_metrics(episodes: Sequence[Episode], stop_reasons: Sequence[str]) -> Metrics:
    """`turns_valid` and `turns_cut`: shares of the turns whose action was legal, and that the length limit ended.

    `stop_reasons` are those of the turns of these episodes. Nothing without turns. The turn in which an environment
    broke is no fault of the actor's and counts as valid.
    """
    turns = sum(episode.turns for episode in episodes)
    if not turns:
        return {}
    invalid = sum(episode.invalid_actions for episode in episodes)
    return {"turns_valid": 1 - invalid / turns, **_cut("turns_cut", stop_reasons)}


def output_metrics(stop_reasons: Sequence[str]) -> Metrics:
    """`outputs_cut`: share of the extractor's outputs that the length limit ended. A prompt that did not fit gave none
    and is left out: it is malformed anyway."""
    return _cut("outputs_cut", [each for each in stop_reasons if each != StopReason.context_limit])


def unreadable_metrics(texts: Iterable[str | None], turns: Iterable[tuple[str, str | None]] = ()) -> Metrics:
    """`unreadable_characters`: characters U+FFFD in what environments texts, and those of actions that the output
    (of `turns`, beside its action) does not have: the arguments of a tool call can spell what is no valid Unicode, and
    a byte-level model writes broken characters of its own. Nothing where all could be read."""
    found = sum(text.count(REPLACEMENT) for text in texts if text)
    found += sum(
        max(0, action.count(REPLACEMENT) - output.count(REPLACEMENT)) for output, action in turns if action is not None
    )
    return {"unreadable_characters": float(found)} if found else {}


def form_alarms(metrics: Mapping[str, float]) -> dict[str, str]:
    """What is wrong with the metrics of a round, by metric; empty where all are inside their bounds."""
    alarms = {}
    if metrics.get("turns_valid", 1.0) < FEWEST_VALID:
        alarms["turns_valid"] = f"fewer than {FEWEST_VALID:.0%} of the turns name a legal action"
    for name, told in (("turns_cut", "turns"), ("outputs_cut", "extractor's outputs")):
        if metrics.get(name, 0.0) > MOST_CUT:
            alarms[name] = f"more than {MOST_CUT:.0%} of the {told} are cut off by the length limit"
    return alarms


def _cut(name: str, stop_reasons: Sequence[str]) -> Metrics:
    if not stop_reasons:
        return {}
    return {name: sum(each == StopReason.length for each in stop_reasons) / len(stop_reasons)}


def guidance_metrics(episodes: Sequence[Episode], previous: Mapping[str, float]) -> tuple[Metrics, dict[str, str]]:
    """(metrics, alarms by metric) of a round; `previous` are the metrics of the round before, empty before the first.

    Only groups with both kinds count; a round without any says nothing. `guidance_lead` is how far guided rollouts are
    ahead of unguided ones (negative: behind), in standard errors of their difference in success as if both had the
    same. `guidance_sum` and `guidance_variance` are carried on.
    """
    groups: dict[tuple[str, int], dict[bool, list[bool]]] = defaultdict(lambda: {True: [], False: []})
    for episode in filter(usable, episodes):
        groups[episode.family, episode.group][episode.guided].append(episode.success)
    both = [group for group in groups.values() if group[True] and group[False]]
    guided, free = ([won for group in both for won in group[which]] for which in (True, False))
    total, variance = previous.get(SUM, 0.0), previous.get(VARIANCE, 0.0)
    if not both:
        return ({SUM: total, VARIANCE: variance} if variance else {}), {}
    share = (sum(guided) + sum(free)) / (len(guided) + len(free))
    total = KEPT * total + sum(guided) / len(guided) - sum(free) / len(free)
    variance = KEPT**2 * variance + share * (1 - share) * (1 / len(guided) + 1 / len(free))
    metrics: Metrics = {SUM: total, VARIANCE: variance}
    if not variance:
        return metrics, {}
    lead = total / variance**0.5
    told = (
        f"guided rollouts win less than unguided ones of the same groups, lately by {-lead:.1f} standard errors: the "
        "experiences mislead the actor. Read them (crl bank show, crl bank why); method.recipe.suppress keeps back "
        "what harms, method.recipe.trial tests experiences before they are kept"
    )
    return {**metrics, LEAD: lead}, {LEAD: told} if lead < MISLEADS else {}


def mismatch_causes(role: RoleConfig, model: Mapping[str, Any]) -> list[str]:
    """Possible causes for a role as this machine computes it; `model` is the config.json of its base model."""
    sizes = {**(model.get("text_config") or {}), **model}
    return [*_other_engine(role), *_own_code(role, sizes), *_other_files(role), *_rounding(role)]


def _other_engine(role: RoleConfig) -> Iterator[str]:
    if not isinstance(role.engine, TransformersEngine):
        yield (
            f"the engine {role.engine.kind}, which samples with kernels, weights and settings of its own, or reports "
            "log-probabilities of another distribution than it draws from: play a round with the engine transformers"
        )


def _own_code(role: RoleConfig, model: Mapping[str, Any]) -> Iterator[str]:
    noise = [f"{key} {value}" for key, value in sorted(model.items()) if _is_noise(key, value)]
    if noise:
        yield f"noise that is on in an update, although it should be off: the model's config has {', '.join(noise)}"
    yield (
        f"the code of this model ({model.get('model_type', 'of an unknown type')}), which computes a whole text "
        "otherwise than turn by turn: `crl doctor EXPERIMENT` compares both with plain transformers"
    )
    experts = next((model[key] for key in _EXPERTS if model.get(key)), None)
    if experts and not _exact(role):
        yield f"its {experts} experts: after the smallest rounding a router chooses others"


def _other_files(role: RoleConfig) -> Iterator[str]:
    adapter = " or its adapter" if role.lora is not None else ""
    yield f"a checkpoint{adapter} that changed on the disk after it was written: `crl verify RUN` compares every digest"


def _rounding(role: RoleConfig) -> Iterator[str]:
    if _exact(role):
        return
    learns = "bfloat16" if role.deepspeed.autocast == "bfloat16" else _FLOAT
    merged = ", the adapter merged before it is rounded" if role.lora is not None and role.dtype != _FLOAT else ""
    yield (
        f"rounding: it samples in {role.dtype}{merged} and learns in {learns}, which rarely makes as much; set dtype: "
        "float32 and autocast: none, or `importance_sampling_correction` in the role's objective"
    )


def _exact(role: RoleConfig) -> bool:
    return role.dtype == _FLOAT and role.deepspeed.autocast == "none"


def _is_noise(key: str, value: Any) -> bool:
    return any(each in key for each in _NOISE) and isinstance(value, float) and value > 0


def mismatch_alarms(metrics: Mapping[str, float], causes: Callable[[str], Sequence[str]]) -> dict[str, str]:
    """What to say where a role's sampler and trainer disagree about fresh tokens, by the metric's name.

    `causes` of a role, the likeliest first: :func:`crl.rounds.alarms.mismatch_causes`.
    """
    found = {}
    for name, value in metrics.items():
        role = name.removesuffix(_MISMATCH)
        if role != name and value > MOST_MISMATCH_KL:
            also = [
                f"{said} {metrics[f'{role}_{metric}']:.2g}"
                for metric, said in (("logprob_mismatch", "mean difference in nats"), ("ratio_max", "largest ratio"))
                if f"{role}_{metric}" in metrics
            ]
            measured = f" ({', '.join(also)})" if also else ""
            listed = "; ".join(f"({number}) {cause}" for number, cause in enumerate(causes(role), 1))
            found[name] = (
                f"sampler and trainer differ by more than {MOST_MISMATCH_KL} about tokens of the same weights"
                f"{measured}; possible causes, the likeliest first: {listed}"
            )
    return found
