"""Complementary RL and its baselines, as lists of stages.

| recipe | differs from complementary by |
|---|---|
| baseline | no bank, no extractor: all rollouts are free |
| static_online | the extractor is not trained |
| experience_only | the actor is not trained |
"""

from __future__ import annotations

from crl.config import Method, RecipeName
from crl.recipes.collect import collect, collect_part, count_waves
from crl.recipes.consolidate import consolidate
from crl.recipes.credit import credit
from crl.recipes.distill import count_batches, distill, distill_part, merge, merge_due
from crl.recipes.evaluate import base_evaluation_due, count_evaluations, evaluate, evaluate_part, evaluation_due
from crl.recipes.initialise import initialise
from crl.recipes.plan import plan
from crl.recipes.stage import Read, Recipe, Stage
from crl.recipes.update import update_stage
from crl.recipes.warm_start import warm_start_actor, warm_start_actor_due, warm_start_extractor, warm_start_extractor_due
from crl.records import (
    BankEntry,
    BankEvent,
    BufferItem,
    Credit,
    Distillation,
    EntryScore,
    Episode,
    Evaluation,
    Generation,
    Metric,
    Operation,
    Retrieval,
    RetrievalCount,
    Sample,
    Task,
    Turn,
    Weights,
)
