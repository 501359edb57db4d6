"""TextArena's single-player games: rules and messages in words, moves in free text.

Each episode is a new instance of the game, made and played on global generators of its own, which is where TextArena's
games draw from. What a game says at the start are the rules; then each turn shows what it said since. A move that the
game rejects is illegal; a second one in a row ends most games, by TextArena's own rule.

Games that would ask a network are refused before their module is imported: those that need a language model as game
master, and those whose word lists (NLTK's) are not on this machine.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from crl.errors import BadInput
from crl.protocols import Actions, FreeText
from crl.worlds.bridges.packages import WHERE, Argument, BridgeConfig, check_known, package
from crl.worlds.bridges.wave import Episode, GlobalStreams, Outcome, Wave, seed_of

_NLTK_DATA: Mapping[str, tuple[str, str]] = {
    "words": ("words", "corpora/words"),
    "pos_tag": ("averaged_perceptron_tagger_eng", "taggers/averaged_perceptron_tagger_eng"),
}
"""What a game's source names, the NLTK package that it needs, and where NLTK looks for it."""
_FULL_MARK = 1 - 1e-9


class TextArenaConfig(BridgeConfig):
    """A single-player game of TextArena."""

    model_config = ConfigDict(title="TextArena")

    PACKAGES: ClassVar[tuple[str, ...]] = ("textarena",)

    kind: Literal["textarena"] = "textarena"
    id: str = Field("GuessTheNumber-v0", description="Registered id, such as Mastermind-v0.")
    arguments: dict[str, Argument] = Field(default_factory=dict, description="Arguments of the game.")
    form: str = Field(
        "one move in square brackets, as the rules say, such as [move]",
        min_length=1,
        max_length=500,
        description="What a prompt shows for {actions}: the form of a move.",
    )
    max_turns: int = Field(
        30, ge=1, le=10_000, description="Turns after which an episode is lost; the game's own limit holds, too."
    )

    @model_validator(mode="after")
    def _levels(self) -> TextArenaConfig:
        if self.held_out_from is not None:
            raise ValueError("held_out_from has to be null: TextArena does not say which level a game is")
        return self

    @property
    def global_streams(self) -> bool:
        """They do."""
        return True

    def make(self) -> Wave:
        """A wave of games. Raises BadInput for an unknown id, a game that this machine cannot play offline, and where
        the package is missing."""
        return Wave(_Games(self).begin, max_turns=self.max_turns, global_streams=self.global_streams)


class _Games:
    """New instances of one game."""

    def __init__(self, config: TextArenaConfig) -> None:
        self._config = config
        self._textarena = package("textarena", extra="textarena")
        known = package("textarena.envs.registration", extra="textarena").ENV_REGISTRY
        check_known(config.id, known, "TextArena id", field="id")
        self._needs_words = False
        self._check(str(known[config.id].entry_point).partition(":")[0])
        try:
            with GlobalStreams(0).installed():
                self._instance(0)
        except Exception as error:
            raise _refused(
                f"the game {config.id!r} cannot be started: {type(error).__name__}: {error}",
                "a game that this version of TextArena can play",
            ) from error

    def _check(self, module: str) -> None:
        """Refuse by its source what would ask a network as soon as its module is imported."""
        path = Path(self._textarena.__file__ or "").parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
        source = path.read_text(encoding="utf-8") if path.is_file() else ""
        if "SinglePlayerState" not in source:
            raise _refused(f"{self._config.id!r} is no single-player game", "a game that one player plays alone")
        if "OpenRouterAgent" in source:
            raise _refused(
                f"the game master of {self._config.id!r} is a language model that is asked over the network",
                "a game that runs without a network",
            )
        if "nltk" not in source:
            return
        self._needs_words = True
        data = package("nltk", extra="textarena").data
        for name, (download, place) in _NLTK_DATA.items():
            if name in source and not _on_disk(data, place):
                raise _refused(
                    f"{self._config.id!r} needs NLTK's {download!r}, which is not on this machine",
                    f"{place} in a folder of nltk.data.path; a run never downloads it",
                    f"python -m nltk.downloader {download}, once, or choose a game without word lists",
                )

    def _instance(self, seed: int) -> tuple[Any, Any]:
        """A game begun, as it is played (its wrappers complete the form of a move), and the game itself."""
        with self._quiet():
            game = self._textarena.make(self._config.id, **self._config.arguments)
            game.reset(num_players=1, seed=seed)
        inner = game
        while isinstance(inner, self._textarena.Wrapper):
            inner = inner.env
        return game, inner

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Without what games print, and without the downloads that they try."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            if self._needs_words:
                nltk = package("nltk", extra="textarena")
                kept, nltk.download = nltk.download, lambda *words, **options: True  # type: ignore[attr-defined]
                stack.callback(setattr, nltk, "download", kept)
            yield

    def begin(self, slot: int, seed: int) -> _Play:
        """A new game of a seed."""
        kinds = self._textarena.ObservationType
        return _Play(*self._instance(seed_of(seed)), kinds, FreeText(self._config.form))


def _refused(found: str, expected: str, next_step: str = "choose another id") -> BadInput:
    return BadInput(found, expected=expected, where=f"{WHERE}.id", next_step=next_step)


def _on_disk(data: Any, place: str) -> bool:
    for name in (place, f"{place}.zip"):
        with contextlib.suppress(LookupError):
            data.find(name)
            return True
    return False


class _Play(Episode):
    """One game."""

    def __init__(self, game: Any, inner: Any, kinds: Any, form: FreeText) -> None:
        self._game, self._inner, self._kinds, self._form = game, inner, kinds, form
        said = self._said()
        self.goal = "\n".join(text for kind, text in said if kind is kinds.PROMPT).strip()
        self._shown = "\n".join(text for kind, text in said if kind is not kinds.PROMPT).strip() or "The game begins."

    def _said(self) -> list[tuple[Any, str]]:
        """What the game said since it was asked last."""
        _, messages = self._inner.get_observation()
        return [(kind, str(text)) for _, text, kind in messages if kind is not self._kinds.PLAYER_ACTION]

    def observation(self) -> str:
        return self._shown

    def actions(self) -> Actions:
        return self._form

    def act(self, action: str) -> Outcome:
        with contextlib.redirect_stdout(io.StringIO()):
            over, _ = self._game.step(action)
        state = self._inner.state
        said = self._said()
        self._shown = "\n".join(text for kind, text in said if kind is not self._kinds.GAME_ADMIN).strip()
        rejected = "\n".join(text for kind, text in said if kind is self._kinds.GAME_ADMIN).strip()
        ended = state.game_info[0]
        legal = not ended.get("invalid_move") and state.error_count == 0
        if not over:
            self._shown = self._shown or ("Nothing has changed." if not legal else "Go on.")
            return Outcome(legal=legal, feedback=rejected)
        reward = float((state.rewards or {}).get(0, 0.0))
        why = str(ended.get("reason") or "")
        return Outcome(over=True, success=reward >= _FULL_MARK, reward=reward, feedback=why or rejected, legal=legal)
