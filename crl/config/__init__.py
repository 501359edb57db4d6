"""The experiment: `name`, `method` (frozen and digested) and `runtime` (free), as pydantic models.

Every field has a description and a bound: it becomes the form in the Prefect UI and the text of `crl doctor`. Models
are frozen and refuse unknown keys. `method` holds whatever can change a number; a changed method is a new experiment.
Reading a YAML file and resolving the prompt file it names is in `crl/config/load.py`.
"""

from __future__ import annotations

from crl.config.base import Exchange, Model, PromptConfig, SeedRange
from crl.config.environments import (
    ENVIRONMENTS,
    EnvironmentConfig,
    FamilyBank,
    FamilyConfig,
    FamilyReward,
    FamilySampling,
)
from crl.config.experiment import Experiment, Runtime, StopAt, TaskRunnerName, WhenBusy
from crl.config.mechanisms import (
    ActorCriticConfig,
    ActorObjective,
    BankConfig,
    ContextDistillationConfig,
    DistillConfig,
    EvaluationConfig,
    ExtractorObjective,
    ImportanceSamplingCorrection,
    MergeConfig,
    PolicyObjective,
    ProvenConfig,
    RetrievalConfig,
    RolloutConfig,
    SearchAndAskConfig,
    SelfDistillationConfig,
    StreamObjective,
    SuppressConfig,
    TrialConfig,
    WarmStartConfig,
)
from crl.config.method import RECIPES, BankUse, EmbedderUse, Method, RecipeConfig, RoleUse
from crl.config.nodes import NodesConfig
from crl.config.registry import Registry
from crl.config.roles import (
    ENGINES,
    DeepSpeedConfig,
    EngineConfig,
    LoraConfig,
    OptimizerConfig,
    RoleConfig,
    SamplingConfig,
)

__all__ = [
    "ENGINES", "ENVIRONMENTS", "RECIPES", "ActorCriticConfig", "ActorObjective", "BankConfig", "BankUse",
    "ContextDistillationConfig",
    "DeepSpeedConfig", "DistillConfig", "EmbedderUse", "EngineConfig", "EnvironmentConfig", "EvaluationConfig",
    "Exchange", "Experiment", "ExtractorObjective", "FamilyBank", "FamilyConfig", "FamilyReward", "FamilySampling",
    "ImportanceSamplingCorrection", "LoraConfig", "MergeConfig", "Method", "Model", "NodesConfig", "OptimizerConfig",
    "PolicyObjective", "PromptConfig", "ProvenConfig", "RecipeConfig", "Registry", "RetrievalConfig", "RoleConfig",
    "RoleUse", "RolloutConfig", "Runtime", "SamplingConfig", "SearchAndAskConfig", "SeedRange",
    "SelfDistillationConfig", "StopAt", "StreamObjective", "SuppressConfig", "TaskRunnerName", "TrialConfig",
    "WarmStartConfig", "WhenBusy",
]  # fmt: skip
