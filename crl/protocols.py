"""The small protocols between rooms: who needs what of whom, without importing each other.

Shapes: B rows of a batch, D dimensions of an embedding, T tokens. Token ids are plain integers here; tensors stay in
`policies`, `learn` and `engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from crl.config import SamplingConfig
from crl.records import Episode, Generation, Turn, Weights


class StopReason(StrEnum):
    """Why a turn or an episode ended."""

    end_of_turn = "end_of_turn"
    stop_string = "stop_string"
    length = "length"
    success = "success"
    failure = "failure"
    turn_limit = "turn_limit"
    context_limit = "context_limit"
    error = "error"


@dataclass(frozen=True, slots=True)
class FreeText:
    """The environment parses what the actor writes: `search[words]`, a shell command, an answer."""

    form: str
    """What may be written, in words or by example, as a prompt's `{actions}` shows it."""
    whole: bool = False
    """Whether the environment is given all that was written, thoughts and blanks too, as a :class:`Written`."""


class Written(str):
    """A text as the actor wrote it, with the ids that were sampled."""

    token_ids: tuple[int, ...]

    def __new__(cls, text: str, token_ids: Sequence[int] = ()) -> Written:
        """`token_ids`: none where nobody sampled it."""
        made = super().__new__(cls, text)
        made.token_ids = tuple(token_ids)
        return made


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the actor may call."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of its arguments: an object."""


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """The actor calls one tool per turn. The environment is given the call as JSON: `{"arguments": {…}, "name": …}`."""

    tools: tuple[Tool, ...]
    several: bool = False
    """Whether a turn may hold several calls: the environment is given a JSON list of them, in their order."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a conversation that a program writes."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    """Without thoughts."""
    calls: tuple[str, ...] = ()
    """Tool calls of an assistant's, as JSON with sorted keys, as an environment is given them."""
    name: str = ""
    """Of a tool's: the tool whose result it is."""


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """What a model wrote in a turn, taken apart."""

    content: str
    thought: str = ""
    calls: tuple[str, ...] = ()


Actions = tuple[str, ...] | FreeText | ToolCalls
"""What the actor may do next: one of some actions by its name, text that the environment parses, or a tool call."""


@dataclass(frozen=True, slots=True)
class Start:
    """What an environment says at reset."""

    goal: str
    observation: str
    actions: Actions
    error: str | None = None
    """Reason code where the episode could not start in this slot. Its first turn ends it; the slot is never stepped."""
    details: str | None = field(default=None, compare=False)
    """Beside `error`, for people: the traceback, or what was wrong. Neither a model nor a row sees it."""
    messages: tuple[tuple[str, str], ...] = ()
    """Role and text of messages of its own before the first user message. A first one of the role `system` stands for
    the system text of the prompt file; the others follow its examples."""
    task_digest: str = field(default="", compare=False)
    """SHA-256 of what the level holds, where its environment says it (`Leveled`): whoever asks the environment fills it
    in. Two seeds of one digest are one task."""

    @classmethod
    def failed(cls, error: str, details: str | None = None) -> Start:
        """The start of an episode that has none."""
        return cls("The episode did not start.", "", ("wait",), error, details)


@dataclass(frozen=True, slots=True)
class Step:
    """What an environment answers to one action."""

    observation: str
    """What is seen now. After the last action too: what it did, and that the episode is over (the end of the
    trajectory, which the extractor reads and the actor does not). Empty where the environment broke."""
    actions: Actions
    legal: bool
    feedback: str
    """What is said about the action beside the observation, and shown before it in the next prompt. After an illegal
    action: what was wrong with it (the state did not change, the turn is spent). After a legal one mostly empty. After
    the last one: what an environment has to say about the whole episode; its outcome follows at a limit."""
    done: bool
    success: bool
    """Whether the task is solved, by the environment's own standard; the reward need not say."""
    reward: float
    """What the episode is worth if it ends here: any finite number. An episode that stops at the context limit gets
    the reward of its last step; one that broke gets 0."""
    stop_reason: StopReason | None = None
    """Why it is over without success: failure, turn_limit or error. None while it runs, and where `success` says it."""
    error: str | None = None
    """Reason code where the environment broke in this slot; the episode is then done without success."""
    details: str | None = field(default=None, compare=False)  # as of a start
    turn_reward: float | None = None
    """What this turn earned, where the environment pays turn by turn. It is recorded; `reward` is their sum so far."""
    reward_parts: Mapping[str, float] | None = None
    """Named parts of `reward`, before they are weighted. Those of the last step are recorded with the episode."""


class Environment(Protocol):
    """A wave of episodes of one task family. Deterministic in the seeds, across processes."""

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start `len(seeds)` episodes, slot i with seeds[i]. May be called again."""

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        """Apply one action in each slot given: a legal action's name, free text, or a tool call as JSON; None is an
        answer that names nothing of the kind. Stepping after done raises.
        It is called for one slot at a time, so that what raises costs its own episode, unless an attribute
        `steps_together` is true: all slots at once are faster. `steps_apart`: in several threads, a slot in each.
        """

    def oracle(self, slot: int) -> str | None:
        """A good next action from the full state, for warm-start demonstrations only; None where none is known."""

    def close(self) -> None:
        """Free what the environment holds."""


@runtime_checkable
class KnowsTruth(Protocol):
    """What an environment may also be: one that knows what is true of it. Asked for metrics only, never in training."""

    def truth(self, text: str) -> float | None:
        """How far what an experience claims is right: 1 fully, 0 not at all; None: it claims nothing."""


@runtime_checkable
class KnowsRule(Protocol):
    """What an environment may also be: one that knows all there is to know of it. Asked for metrics only, never in
    training."""

    def whole(self, text: str) -> bool:
        """Whether an experience says the whole rule, and nothing else."""


@runtime_checkable
class Leveled(Protocol):
    """What an environment may also be: one that says which level an episode is played on, so that what is held out can
    be proved. Asked by tests and by people; nothing that plays or trains sees it."""

    def content(self, slot: int) -> str:
        """What of the level a player could know by heart, as text: equal texts are one level."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a game teaches, as an extractor's operation: `add` a text, `update` the experience that guided it, or
    `return`."""

    kind: Literal["add", "update", "return"]
    text: str | None = None


@runtime_checkable
class Instructive(Protocol):
    """What an environment may also be: one that can say what a game of it teaches. A warm start asks it."""

    def lesson(self, episode: Episode, turns: Sequence[Turn]) -> Lesson:
        """What a careful player would write after a game, from what it showed and the experience that guided it."""


@runtime_checkable
class Teacher(Instructive, Protocol):
    """What an environment may also be: one that shows its work where rules are of no task. A warm start asks it."""

    def practice(self) -> TeachingEnvironment:
        """The same game under rules that no task has."""

    def hint(self, slot: int, random: np.random.Generator, *, true: bool = True) -> str | None:
        """An experience to show in a demonstration of a practice game; None: none. `true` False: it is wrong in
        something."""

    def tidied(self, experiences: Sequence[str]) -> list[tuple[str, tuple[int, ...]]]:
        """A shorter list that says as much: each text with the places, from 0, of the experiences that it stands
        for. A text that stands for one experience is that experience."""


class TeachingEnvironment(Environment, Teacher, Protocol):
    """An environment to practice in."""


@dataclass(frozen=True, slots=True)
class Program:
    """How the program of an episode is started."""

    command: tuple[str, ...]
    variables: Mapping[str, str]
    """Environment variables beside those of this process; in a sandbox these and no others."""
    port: int | None = None
    """Where it reaches the gateway, in a sandbox with a loopback of its own."""
    user: int | None = None
    """Of this machine, that it is started as; None: this process's."""
    watch: Callable[[Sequence[int]], str] | None = None
    """Which limit its processes break, in words, from their ids; empty: none. It is asked while they run."""
    seconds: float | None = None
    """Its own limit, where that is shorter than the one of all."""


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """What the program of an episode may use."""

    calls: int
    tokens: int
    """That are sampled for it."""
    seconds: float
    """Of its own: while none of its calls is open."""
    call_seconds: float
    """Until its next call, or its end."""


@runtime_checkable
class RunsPrograms(Protocol):
    """What an environment may also be: one whose episodes are programs that run themselves. Nobody steps it; a program
    calls the actor through the gateway (`crl/rollout/programs.py`)."""

    limits: ProgramLimits
    side: frozenset[str]
    """Names of models whose calls are answered and recorded, and not trained."""
    home: Path | None
    """Folder that programs in sandboxes run in folders of; the gateway listens at `gateway.sock` in it, too. None: they
    have no sandbox."""

    def program(self, slot: int, folder: Path) -> Program:
        """What a slot runs in an empty folder."""

    def outcome(self, slot: int, messages: Sequence[Mapping[str, Any]], folder: Path, exit_code: int) -> Step:
        """The end of a slot's episode: what the program did is worth. `messages`: its last conversation, in OpenAI's
        form; `folder`: the one it ran in."""


@runtime_checkable
class Explains(Protocol):
    """What an environment may also be: one that says why a step had the outcome it had, by its own rules. A model of
    the environment learns from it (`dreamgym`); nothing that plays sees it."""

    def why(self, slot: int) -> str | None:
        """Why the last step of a slot led where it did, in one or two sentences; None where there is nothing to say.
        Asked right after the step."""


@runtime_checkable
class Graded(Protocol):
    """What an environment may also be: one that says how hard its levels are, so that a curriculum can choose."""

    def difficulty(self, slot: int) -> float:
        """How hard the level of a slot is, from 0 to 1, as it began. Asked after a reset."""


@runtime_checkable
class Proves(Protocol):
    """What an environment may also be: one that tries the reference solution of each of its tasks."""

    def proofs(self, *, kept: bool = False) -> Iterator[tuple[str, str | None]]:
        """The tasks by name, each with why nobody can win it; empty where its reference solution does. Each is tried
        when it is asked for, which may take minutes; what came of it is kept. `kept`: none is tried, and None stands
        for one that never was."""


@runtime_checkable
class Itemized(Protocol):
    """What an environment may also be: one whose tasks are those of a person's files, a list that has an end."""

    def items(self) -> Iterable[tuple[str, Callable[[], object]]]:
        """Each task by its name, held-out ones first, with what starts it and raises where it cannot be started."""


@dataclass(frozen=True, slots=True)
class Ability:
    """A method that an environment may also have, and what a wrapper must know to hand it on."""

    name: str
    protocol: type
    of_slot: bool = False
    """Whether it is about a slot, its first argument: the instance that plays it is asked."""
    crosses: bool = True
    """Whether it can be called in another process."""


ABILITIES = (
    Ability("truth", KnowsTruth),
    Ability("content", Leveled, of_slot=True),
    Ability("lesson", Instructive),
    Ability("practice", Teacher, crosses=False),
    Ability("hint", Teacher, of_slot=True, crosses=False),  # it draws from the caller's generator
    Ability("tidied", Teacher, crosses=False),
    Ability("why", Explains, of_slot=True),
    Ability("difficulty", Graded, of_slot=True),
)
"""All of them. An environment without any is played all the same."""


def hand_on(wrapper: object, environment: object, method_of: Callable[[Ability], Any]) -> None:
    """Give a wrapper what `method_of` says for each ability that the environment in it has."""
    for ability in ABILITIES:
        if hasattr(environment, ability.name):
            setattr(wrapper, ability.name, method_of(ability))


@dataclass(frozen=True, slots=True)
class Sampled:
    """One turn of one row: the ids sampled, their behavior log-probabilities, and why it ended."""

    token_ids: list[int]
    logprobs: list[float]
    """Under the temperature-scaled distribution over all tokens, before any cut; 0 where there was no choice."""
    stop_reason: StopReason
    drawn: list[int] | None = None  # 1 where the id was drawn, 0 where the answers left no choice; None: all were
    choices: list[list[int]] = field(default_factory=list)
    """Ids that each drawn id was chosen among, in order; none where it was the whole vocabulary."""
    error: str | None = None  # reason code where sampling broke: an episode ends with it
    renormalized: bool = False
    """Whether log-probabilities are a server's, of what a cut left."""


Answers = Mapping[int, Any]
"""The answers that a row may give, as a tree: from a token id to the tree of what may follow it; empty at the end of an
answer. Each path is one answer with the end of its turn."""


class Session(Protocol):
    """Rows of one batch, each with its prompt and its seed. Rows are named by their index at opening."""

    def extend(self, pieces: Mapping[int, Sequence[int]]) -> None:
        """Append ids that the model did not sample (observations, glue) to the rows given."""

    def replace(self, row: int, token_ids: Sequence[int], seed: int | None = None) -> None:
        """Give a row whose turn is over other ids, at least one. It keeps its place, its random stream, and what was
        computed of the ids up to the first that differs. With a `seed` its stream begins anew."""

    def begin(
        self, rows: Sequence[int], sampling: SamplingConfig, answers: Mapping[int, Answers] | None = None
    ) -> None:
        """Begin a turn in each row given. What is drawn follows from the row's own seed and what it drew before, never
        from the rows beside it. A row that has `answers` gives one of them, from the distribution renormalized over
        them; the others write free text."""

    def advance(self) -> dict[int, Sampled]:
        """Sample until a turn ends; the turns that have, by row. Their ids have joined the rows.

        Nothing recorded may depend on which are returned together: behind a server that follows from time. Empty where
        none is under way, and where all that are wait for a place that a row without a turn holds.
        """

    def drop(self, rows: Sequence[int]) -> None:
        """Free rows that are finished; they may not be used again."""

    def length(self, row: int) -> int:
        """Tokens of a row so far."""

    def close(self) -> None:
        """Give up what is under way. The session is not used again."""


class WholeTurns:
    """Base of a session that samples whole turns: it has `sample`, and from here `begin` and `advance`."""

    _begun: tuple[list[int], SamplingConfig, Mapping[int, Answers] | None] | None = None

    def sample(
        self, rows: Sequence[int], sampling: SamplingConfig, answers: Mapping[int, Answers] | None
    ) -> dict[int, Sampled]:
        """One turn in each row given."""
        raise NotImplementedError("a session of whole turns has `sample`")

    def begin(
        self, rows: Sequence[int], sampling: SamplingConfig, answers: Mapping[int, Answers] | None = None
    ) -> None:
        """Keep the rows for :meth:`advance`."""
        if self._begun is not None:
            raise ValueError("the turns that were begun before have to end first: call `advance`")
        self._begun = list(rows), sampling, answers

    def advance(self) -> dict[int, Sampled]:
        """The turns that were begun, all of them."""
        begun, self._begun = self._begun, None
        return self.sample(*begun) if begun is not None and begun[0] else {}

    def close(self) -> None:
        """Nothing is under way between two calls."""


class Chat(Protocol):
    """Turns messages into ids that are only ever appended to."""

    template: str
    """Which chat template writes the prompts, and what becomes of earlier turns, in words."""
    opens_thought: bool
    """Whether a prompt ends inside a thought (`<think>`) that the model is to end: thinking models' templates do so."""

    @property
    def takes_tools(self) -> bool:
        """Whether the model's own template shows tools, so that they are called in its own form; else the prompt has to
        describe them."""

    def opening(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Tool] = ()) -> list[int]:
        """Ids of a whole first prompt, ready for the assistant to answer. `tools` only where the chat takes them."""

    def reply(self, text: str, *, ended: bool, by: int | None = None, call: str | None = None) -> list[int]:
        """Ids after an assistant turn: its end (unless `ended`: it was sampled), the user's text, the next opening.

        `by`: the id that ended it. `call`: the tool that it called, whose result the text is; only where the chat takes
        tools.
        """

    def keeps_thoughts(self, call: str) -> bool:
        """Whether thoughts stay in a history that goes on with the result of this tool, though later prompts leave them
        out; only where the chat takes tools."""

    def without_thoughts(self, asked: Sequence[int], wrote: Sequence[int]) -> tuple[list[int], list[int]]:
        """The end of a prompt and what was sampled behind it, as both stand in later prompts that leave thoughts out:
        without the ids of the thought, and of what began it."""

    def answer(self, text: str, *, call: bool = False) -> list[int]:
        """Ids a model would have sampled to say `text` and end its turn (demonstrations only).

        `call`: the text may be a tool call in JSON, written in the model's own form; only where the chat takes tools.
        """

    def calls(self, token_ids: Sequence[int], tools: Sequence[Tool]) -> list[str]:
        """The tool calls of a sampled turn, in their order, as JSON; only where the chat takes tools."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled ids, without special tokens."""


class ReadableChat(Chat, Protocol):
    """A chat whose ids can be read back as messages."""

    def replied(
        self, token_ids: Sequence[int], *, ended: bool, by: int | None = None, call: str | None = None
    ) -> str | None:
        """The text that `reply` writes these ids for; None: there is none."""

    def turn_text(self, token_ids: Sequence[int]) -> str:
        """Text of a sampled turn, with the beginning of its thought where that stands in the prompt."""


class ConversationChat(Chat, Protocol):
    """A chat that also takes conversations which a program writes."""

    def conversation(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Ids of a whole conversation, ready for the assistant to answer. Raises BadInput where the template refuses
        it."""

    def follow(self, messages: Sequence[Message], *, ended: bool, by: int | None = None, calls: int = 0) -> list[int]:
        """Ids after a sampled turn with so many `calls`: its end (unless `ended`, by the id `by`), the messages, the
        next opening. Raises BadInput where the template refuses them."""

    def parsed(self, token_ids: Sequence[int], tools: Sequence[Tool] = ()) -> ParsedTurn:
        """A sampled turn, taken apart; calls only of `tools`."""


class Policy(Protocol):
    """A language model that samples."""

    chat: Chat
    context: int

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> Session:
        """Start one row per prompt. `seeds` holds one number from 0 on per row (of any size), from which all its
        sampling follows. At most `limit` rows are sampled at one time; a row that is dropped makes room for the next
        one, in their order. An engine that orders its own work may sample more."""


class LoadedPolicy(Policy, Protocol):
    """A policy as a rollout engine lends it: it can take new weights, and holds memory until it is closed."""

    def take_weights(self, directory: Path) -> bool:
        """Read the weights of a directory (as `save_pretrained` writes them, or an adapter) in place of its own.

        Returns False, and changes nothing, where the model must be loaded again. Open sessions may no longer be used.
        """

    def close(self) -> None:
        """Free what it holds."""


@runtime_checkable
class Served(Protocol):
    """What a loaded policy may also be: one whose model is in a server, which is given the digest of its weights."""

    def hand_over(self, checkpoint: Path | None, weights: str) -> None:
        """From now on the weights of a checkpoint (None: of the base model), whose digest is `weights`."""


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A question of an actor's, with what whoever answers may know (search-and-ask)."""

    question_id: str
    episode_id: str
    family: str
    goal: str
    observation: str
    """What the actor sees while it asks."""
    question: str


@dataclass(frozen=True, slots=True)
class Advice:
    """What came of an inquiry: an answer, or a reason code why there is none."""

    reason_code: str
    answer: str | None = None
    """Text for the actor; None unless the reason code is ok."""
    entry_id: str | None = None
    content_digest: str | None = None
    similarity: float | None = None
    """Cosine of the question and the entry that was found."""
    generation: Generation | None = None
    """Token record of what was sampled; None where nothing was."""


class Advisor(Protocol):
    """Answers questions that actors ask while they play."""

    def advise(self, inquiries: Sequence[Inquiry]) -> list[Advice]:
        """One advice per inquiry, in their order; all of them are answered as one batch."""


class TextVectors(Protocol):
    """Texts to unit vectors."""

    dimension: int

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors [B, D] of the texts; a text has the same vector whatever the batch."""


class Embedder(TextVectors, Protocol):
    """Texts, and queries for them, to unit vectors."""

    name: str

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors [B, D] of texts that are searched for."""

    def cuts(self, texts: Sequence[str]) -> list[bool]:
        """Whether only the beginning of each text is read, because it is longer than the embedder takes."""


class Reading(NamedTuple):
    """What a model gives to the trained tokens of a sample."""

    logprobs: list[float]
    """Log-probability of each."""
    top_ids: list[list[int]]
    """The likeliest ids in place of each; none where nobody asked."""
    top_logprobs: list[list[float]]
    """Their log-probabilities."""


Factors = Mapping[str, float] | Callable[[Mapping[str, float]], Mapping[str, float]]
"""What multiplies objectives, by name; or a function that says it, given the norms of their gradients."""


class Trainer(Protocol):
    """A role's weights under the update engine."""

    def proximal(self, samples: Sequence[Any], objectives: Any) -> dict[str, Any]:
        """What the first of several steps begins with, by sample id, where an objective goes by that; every rank calls
        it with the same rows of one step."""

    def update(
        self,
        samples: Sequence[Any],
        objectives: Any,
        *,
        stale: Set[str] = frozenset(),
        proximal: Mapping[str, Any] | None = None,
        factors: Factors | None = None,
    ) -> dict[str, float]:
        """One optimizer step over all `Sample` rows; every rank calls it with the same rows. Returns metrics. `stale`
        are ids of rows of the round that older weights wrote than the update begins with; `proximal` is that of all
        steps, where there are several."""

    def read(self, samples: Sequence[Any], *, likeliest: int = 0) -> dict[str, Reading]:
        """What the weights give to the trained tokens of `Sample` rows, by sample id, and to so many of the `likeliest`
        ids in place of each; every rank calls it with the same rows."""

    def save(self, directory: Path) -> None:
        """Write weights and optimizer state; every rank calls it with the same directory."""


class Services(Protocol):
    """What the engine lends a stage; everything heavy is behind it."""

    rank: int
    """Rank of this process in the update engine; only rank 0 writes rows."""

    def environment(self, family: str, round_number: int) -> Environment:
        """The environment of a task family, by its name, as it is in a round."""

    def policy(self, role: str, weights: Weights) -> Policy:
        """The role's sampling model with the weights of a row."""

    def trainer(self, role: str, weights: Weights) -> Trainer:
        """The role's trainer standing at the weights of a row, optimizer state included."""

    def trained(self, role: str, weights: Weights) -> None:
        """Say that the trainer of a role has reached the weights of a new row; every rank does, rank 0 with the row."""

    def model_digest(self, role: str) -> str:
        """SHA-256 over the files of a role's base model, or of the embedder (role `embedder`)."""

    def model_path(self, role: str) -> Path:
        """Directory of the base model's transformers checkpoint."""

    def embedder(self) -> Embedder:
        """The embedder of the retrieval config."""
