"""A role: its model, how it samples, with which engine, how it is trained."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, StrictBool, Tag, model_validator

from crl.config.base import COLDEST, LearningRateSchedule, Model, off, refuse_warmup, single, unset
from crl.config.models import Sampling
from crl.config.registry import Registry, load_object
from crl.errors import BadInput

StopString = Annotated[str, Field(min_length=1, max_length=64)]


_MOST = 1_000_000_000


def _one_value(value: Any) -> Any:
    """Of the members of a union each would have an error of its own."""
    number = isinstance(value, int | float)
    if not (isinstance(value, str | None) or (number and -_MOST <= value <= _MOST)):
        raise ValueError(f"must be a text, true, false, or a number between {-_MOST} and {_MOST}")
    return value


TemplateArgument = Annotated[
    StrictBool | Annotated[int, Field(ge=-_MOST, le=_MOST)] | Annotated[float, Field(ge=-_MOST, le=_MOST)] | str | None,
    BeforeValidator(_one_value),
]


_MIN_P = "Least probability of an id, as a share of the likeliest one's; cut before top_k and top_p; 0: off."


class SamplingConfig(Model):
    """How a role samples."""

    temperature: float = Field(1.0, ge=COLDEST, le=5, description="Divides the logits, in sampling and training.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling; 1: off.")
    top_k: int = Field(0, ge=0, le=1_048_576, description="Top-k sampling; 0: off.")
    min_p: float = Field(0.0, ge=0, le=1, exclude_if=off, description=_MIN_P)
    max_new_tokens: int = Field(64, ge=1, le=32_768, description="New tokens per turn or output.")
    constrain: Literal["none", "actions"] = Field(
        "none", description="actions: the actor can only write legal actions; none: any text."
    )
    stop_strings: list[StopString] = Field(
        [],
        max_length=8,
        exclude_if=off,
        description="A turn ends with the token that completes one of these, such as </action>, inside a thought too.",
    )

    @property
    def cuts(self) -> bool:
        """Whether ids are drawn from a part of the distribution only."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    @model_validator(mode="after")
    def _something_is_written_on(self) -> SamplingConfig:
        refuse_stops(self.stop_strings, self.constrain)
        return self


def refuse_stops(stop_strings: Sequence[str] | None, constrain: str | None) -> None:
    """Raise ValueError where texts are to end turns that hold none."""
    if stop_strings and constrain == "actions":
        raise ValueError("stop_strings end a text: with constrain: actions a turn is an action and ends with it")


class SamplingChange(Model):
    """Changes to the actor's sampling."""

    top_p: float | None = Field(None, gt=0, le=1, exclude_if=unset, description="Nucleus sampling; 1: off.")
    top_k: int | None = Field(None, ge=0, le=1_048_576, exclude_if=unset, description="Top-k sampling; 0: off.")
    min_p: float | None = Field(None, ge=0, le=1, exclude_if=unset, description=_MIN_P)
    max_new_tokens: int | None = Field(None, ge=1, le=32_768, exclude_if=unset, description="New tokens per turn.")
    constrain: Literal["none", "actions"] | None = Field(
        None, exclude_if=unset, description="actions: the actor can only write legal actions; none: any text."
    )
    stop_strings: list[StopString] | None = Field(
        None, max_length=8, exclude_if=unset, description="Texts that end a turn; []: none."
    )

    def over(self, sampling: SamplingConfig) -> SamplingConfig:
        """The settings of a role with those that are set here."""
        return sampling.model_copy(update=self.model_dump(exclude_none=True))

    @model_validator(mode="after")
    def _something_is_written_on(self) -> Self:
        refuse_stops(self.stop_strings, self.constrain)
        return self


class LoraConfig(Model):
    """LoRA adapters (peft) in place of full weights."""

    r: int = Field(16, ge=1, le=1024, description="Rank.")
    lora_alpha: float = Field(32, gt=0, le=1_000_000, description="The update is multiplied by lora_alpha / r.")
    target_modules: list[str] | Literal["all-linear"] = Field(
        "all-linear", description="Modules that get an adapter; all-linear: every linear layer and expert."
    )


class WindowHistory(Model):
    """Once the next turn does not fit, keep the opening and the last turns."""

    window: int = Field(ge=1, le=1_000_000, description="Most turns to keep beside the opening.")


class SummaryAt(Model):
    """When to summarize."""

    at: int = Field(ge=32, le=1_048_576, description="Most tokens of a sequence, its next turn included.")


class SummaryHistory(Model):
    """Once a sequence grows too long, the actor writes a summary that replaces it."""

    summarize: SummaryAt = Field(description="When. The prompt is `prompts.actor.summarize`.")


def _form_of(history: object) -> str:
    """Which form of a history a value is meant as."""
    if isinstance(history, SummaryHistory) or (isinstance(history, Mapping) and "summarize" in history):
        return "summarize"
    return "window" if isinstance(history, WindowHistory | Mapping) else "name"


HistoryConfig = Annotated[
    Annotated[Literal["append", "strip_thoughts"], Tag("name")]
    | Annotated[WindowHistory, Tag("window")]
    | Annotated[SummaryHistory, Tag("summarize")],
    Discriminator(_form_of),
]

DecayRate = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Model):
    """Optimizer of a role."""

    kind: Literal["adamw", "sgd"] = Field("adamw", description="AdamW, or plain SGD.")
    learning_rate: float = Field(1e-6, gt=0, le=10, description="Learning rate, at its peak.")
    lr_scheduler_type: LearningRateSchedule = "constant"
    warmup_steps: int = Field(0, ge=0, le=1_000_000, description="Steps over which the rate rises from 0.")
    lr_scheduler_steps: int | None = Field(
        None,
        ge=1,
        le=1_000_000_000,
        exclude_if=unset,
        description="Steps, warm-up included, until `linear` or `cosine` reaches 0; later steps change nothing. "
        "The view `weights` counts a role's steps (`updates`).",
    )
    num_iterations: int = Field(
        1,
        ge=1,
        le=100,
        exclude_if=single,
        description="Epochs per round, one step per mini-batch. GRPO's clip acts from a round's second step on; CISPO "
        "bounds weights instead, and next-token losses have no clip.",
    )
    num_mini_batches: int = Field(
        1,
        ge=1,
        le=1000,
        exclude_if=single,
        description="Mini-batches that each batch of a round is dealt into at random: more steps from as many passes.",
    )
    betas: tuple[DecayRate, DecayRate] = Field((0.9, 0.999), description="AdamW's decay rates.")
    weight_decay: float = Field(0.0, ge=0, le=1, description="Decoupled weight decay.")
    max_grad_norm: float = Field(1.0, ge=0, le=1_000_000, description="Largest gradient norm; 0: no clipping.")

    @model_validator(mode="after")
    def _scheduled(self) -> OptimizerConfig:
        refuse_warmup(self.lr_scheduler_type, self.warmup_steps)
        falls, steps = self.lr_scheduler_type in ("linear", "cosine"), self.lr_scheduler_steps
        if falls and (steps is None or steps <= self.warmup_steps):
            raise ValueError(
                f"lr_scheduler_type: {self.lr_scheduler_type} needs lr_scheduler_steps above warmup_steps "
                f"({self.warmup_steps}): the optimizer steps after which the learning rate is 0"
            )
        if not falls and steps is not None:
            raise ValueError(f"lr_scheduler_steps has no effect with lr_scheduler_type: {self.lr_scheduler_type}")
        return self


class DeepSpeedConfig(Model):
    """How updates are computed."""

    zero_stage: Literal[0, 1, 2, 3] = Field(0, description="ZeRO stage.")
    ranks: int = Field(1, ge=1, le=1024, description="Processes (GPUs) of an update.")
    micro_batch: int = Field(
        4,
        ge=1,
        le=1024,
        description="Size of a micro-batch, in samples of the longest length; the rest is accumulated.",
    )
    autocast: Literal["none", "bfloat16"] = Field(
        "none",
        description="Precision of computation; weights stay float32. A CPU without bfloat16 kernels uses float32.",
    )
    gradient_checkpointing: bool = Field(False, description="Recompute activations: less memory, more time.")


class EngineConfig(Model):
    """What the config of every rollout engine has. Subclass it with a default for `kind`, own fields and :meth:`load`.

    An engine is found by its `kind`: the built-in one, the entry points of the group `crl.engines`, or `module:Class`.
    """

    kind: str = Field(description="Name of the engine, or module:Class.")

    SERVED: ClassVar[bool] = False
    """Whether it samples by a server: a :class:`crl.config.engines.ServedEngine`."""
    REMOTE: ClassVar[bool] = False
    """Whether the model is somebody else's, behind an endpoint: no weights are here, so nothing can be trained."""
    STOPS_AT_TEXT: ClassVar[bool] = False
    """Whether it ends turns at `sampling.stop_strings`, with all ids that were sampled; else they are refused."""
    RENORMALIZES: ClassVar[bool] = False
    """Whether its log-probabilities are of what a cut leaves (`SamplingConfig.cuts`), not of the whole distribution.
    What is trained on them gets those of the whole from a stage of its round (`crl/rounds/behavior.py`)."""

    def problems(self, role: RoleConfig, name: str, temperatures: Mapping[str, float]) -> Iterator[BadInput]:
        """What a role of this name asks for and the engine cannot do, each at its place; refused before any work.

        `temperatures` are those that it is sampled at, by the place in the config that says so.
        """
        return iter(())

    def load(self, role: RoleConfig, model_path: Path, checkpoint: Path | None, *, threads: int) -> Any:
        """A policy ready to sample (`crl.protocols.LoadedPolicy`).

        Args:
            role: the role that samples: precision, context, chat template.
            model_path: directory of the base model; tokenizer and chat template come from here.
            checkpoint: directory of the role's weights or LoRA adapter; None: those of the base model.
            threads: CPU threads of this process.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how it loads a model")


class TransformersEngine(EngineConfig):
    """Samples in this process; keeps the key-value cache between turns."""

    kind: Literal["transformers"] = "transformers"
    STOPS_AT_TEXT: ClassVar[bool] = True

    def load(
        self,
        role: RoleConfig,
        model_path: Path,
        checkpoint: Path | None,
        *,
        threads: int,
        way: Sampling | None = None,
        base: Callable[[Any], Any] | None = None,
    ) -> Any:
        """See :func:`crl.policies.language_model.load_policy`."""
        load_policy = load_object("crl.policies.language_model:load_policy")
        return load_policy(role, model_path, checkpoint, threads=threads, way=way, base=base)


ENGINES = Registry(
    "engine",
    EngineConfig,
    {
        "transformers": "crl.config.roles:TransformersEngine",
        "vllm": "crl.config.engines:VllmEngine",
        "openai": "crl.config.engines:OpenAIEngine",
    },
)
"""The rollout engines that a role may name."""


ENDPOINT = "endpoint:"
"""How the name of a model begins that is behind an endpoint."""
OF_RUN = re.compile(r"run:[^/@]+@\d+")
"""Weights of a round, without the role that had them."""


class RoleConfig(Model):
    """A model, its sampling and its training."""

    OF_WEIGHTS: ClassVar[tuple[str, ...]] = ("model", "dtype", "engine", "lora", "optimizer", "deepspeed")
    """Fields that belong to a set of weights: a role that shares another's has none of its own."""
    OF_BASE: ClassVar[tuple[str, ...]] = ("model", "dtype", "engine")
    """Those of them that belong to a frozen base: a role that stands on another's has none of its own."""

    weights: str | None = Field(None, description="Role whose weights it shares; null: its own.")
    base: str | None = Field(
        None,
        exclude_if=unset,
        description="Role whose frozen base it shares: one model in memory, an adapter (`lora`) for each; model, "
        "dtype and engine are the other role's. null: its own.",
    )
    model: str = Field(
        "smollm2-135m-instruct",
        description="The model to start from: tiny or smollm2-135m-instruct (shipped), a Hugging Face id "
        "(organization/model@revision), the directory of a checkpoint or peft adapter, warm:<name>/<role>, "
        "run:<name>@<round> (a run's weights of the same role; run:<name>@<round>/<role> for another), or "
        "endpoint:<name> (engine openai).",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Precision of sampling; float32 on a CPU without bfloat16 kernels."
    )
    chat_template: str | None = Field(
        None,
        max_length=200_000,
        exclude_if=unset,
        description="Replaces the model's chat template: the name of a jinja file beside the experiment. Its "
        "text becomes part of the method. null: the model's own.",
    )
    chat_template_kwargs: dict[str, TemplateArgument] = Field(
        {},
        exclude_if=off,
        description="Arguments of the chat template, such as enable_thinking: false or reasoning_effort: low. "
        "One that the template does not read is an error.",
    )
    context: int = Field(2048, ge=32, le=1_048_576, description="Longest sequence in tokens.")
    history: HistoryConfig = Field(
        "append",
        exclude_if=lambda value: value == "append",
        description="What the actor sees of earlier turns. append: everything, as sampled; strip_thoughts: all "
        "but thoughts; {window: N}: when full, the opening and the last N turns; {summarize: {at: TOKENS}}: "
        "beyond this length, the opening and a summary.",
    )
    sampling: SamplingConfig = Field(SamplingConfig(), description="How it samples.")
    engine: Annotated[EngineConfig, ENGINES] = Field(TransformersEngine(), description="What samples.")
    lora: LoraConfig | None = Field(None, description="LoRA; null: train full weights.")
    optimizer: OptimizerConfig = Field(OptimizerConfig(), description="Optimizer.")
    deepspeed: DeepSpeedConfig = Field(DeepSpeedConfig(), description="Update engine.")

    @model_validator(mode="after")
    def _shared(self) -> RoleConfig:
        if self.base is not None and self.weights is not None:
            raise ValueError(f"weights is {self.weights} and base is {self.base}: set one of them")
        return self

    def check_set_elsewhere(self, name: str) -> None:
        """Raise ValueError where a role of this name sets what belongs to the role whose weights or base it has."""
        fields = type(self).model_fields
        own = [field for field in self.OF_WEIGHTS if getattr(self, field) != fields[field].get_default()]
        of_base = [field for field in own if field in self.OF_BASE]
        for whose, owner, names in (("weights are those", self.weights, own), ("base is that", self.base, of_base)):
            if owner is not None and names:
                raise ValueError(f"roles.{name}: the {whose} of {owner}, so {', '.join(names)} is set there")

    def check_shared_base(self, name: str) -> None:
        """Raise BadInput where a role of this name cannot have its base together with another."""
        if self.lora is None:
            raise BadInput(
                f"role {name} shares its base with another role, and it trains full weights",
                expected="an adapter: the base of several roles stays as it is",
                where=f"method.roles.{name}.lora",
                next_step="set lora ({} has the defaults), or give each role a model of its own",
            )
        if self.deepspeed.zero_stage == 3:
            raise BadInput(
                f"role {name} shares its base with another role, and ZeRO-3 divides a base among ranks",
                expected="zero_stage 0, 1 or 2: they leave the base whole",
                where=f"method.roles.{name}.deepspeed.zero_stage",
                next_step="lower zero_stage, or give each role a model of its own",
            )

    def engine_problems(self, name: str, temperatures: Mapping[str, float]) -> Iterator[BadInput]:
        """What a role of this name asks for and its engine cannot do; `temperatures` as in `EngineConfig.problems`."""
        strings, where = self.sampling.stop_strings, f"method.roles.{name}.sampling.stop_strings"
        if strings and not self.engine.STOPS_AT_TEXT:
            yield BadInput(
                f"{where} is {strings}, and the engine is {self.engine.kind}",
                expected="none: this engine does not end a turn at a text",
                where=where,
                next_step="leave it out, or use the engine transformers",
            )
        for field in ("chat_template", "chat_template_kwargs") if self.engine.REMOTE else ():
            if getattr(self, field):
                where = f"method.roles.{name}.{field}"
                yield BadInput(
                    f"{where} is set, and the model is behind an endpoint",
                    expected="none: the endpoint renders chats itself",
                    where=where,
                    next_step="leave it out",
                )
        yield from self.engine.problems(self, name, temperatures)
