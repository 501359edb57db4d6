"""How many tokens the extractor reads of a game: games played at random, as a distillation prompt shows them.

    python benchmarks/distill_prompts.py [conf/quickstart.yaml] [--games 400]

Games of the experiment's first task family are played by uniformly random legal actions on training seeds; the prompt
is made by the experiment's prompts and its extractor's tokenizer. Told are the tokens of the prompt, over all games and
over those of every turn, how many of them fit, and the context that would hold all of them with a whole output behind.
No model is loaded.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from crl.config import FamilyConfig
from crl.config.load import load_experiment
from crl.envs import make_environment
from crl.extractor.prompts import distill_messages
from crl.policies import load_chat, resolve_model
from crl.records import Episode, Turn


def played(family: FamilyConfig, seeds: Sequence[int]) -> list[tuple[Episode, list[Turn]]]:
    """One game per seed, played by uniformly random legal actions."""
    environment = make_environment(family)
    starts = environment.reset_many(seeds)
    random = [np.random.default_rng([7, seed]) for seed in seeds]
    actions = {slot: start.actions for slot, start in enumerate(starts)}
    seen = [start.observation for start in starts]
    turns: list[list[Turn]] = [[] for _ in seeds]
    episodes: dict[int, Episode] = {}
    while actions:
        chosen = {slot: str(random[slot].choice(listed)) for slot, listed in actions.items()}
        for slot, step in environment.step_many(chosen).items():
            turns[slot].append(
                Turn(
                    episode_id=f"g{slot}", turn=len(turns[slot]), observation=seen[slot], output=chosen[slot],
                    action=chosen[slot], valid=True, feedback=None, generation_id="g", first_token=0, last_token=1,
                    stop_reason="end_of_turn",
                )
            )  # fmt: skip
            seen[slot], actions[slot] = step.observation, step.actions
            if not step.done:
                continue
            del actions[slot]
            episodes[slot] = Episode(
                episode_id=f"g{slot}", round=1, family=family.name, group=slot, member=0, environment_seed=seeds[slot],
                guided=False, goal=starts[slot].goal,
                success=step.success, reward=step.reward, turns=len(turns[slot]), invalid_actions=0,
                tokens_read=0, tokens_sampled=0,
                stop_reason=str(step.stop_reason), last_observation=step.observation, error=None, generation_ids=["g"],
            )  # fmt: skip
    environment.close()
    return [(episodes[slot], turns[slot]) for slot in range(len(seeds))]


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", nargs="?", default="conf/quickstart.yaml")
    parser.add_argument("--games", type=int, default=400)
    arguments = parser.parse_args()
    method = load_experiment(arguments.experiment).method
    role, family = method.role("extractor"), method.families[0]
    first = family.train_seeds.start
    games = played(family, range(first, first + min(arguments.games, family.train_seeds.count)))
    chat = load_chat(resolve_model(role.model))
    tokens = np.array(
        [len(chat.opening(distill_messages(method.prompts["distill"], *game, method.recipe.distill))) for game in games]
    )
    whole = np.array([len(turns) == family.environment.max_turns for _, turns in games])
    new = role.sampling.max_new_tokens
    print(f"{len(games)} games of {family.name}, {whole.mean():.0%} of them of {family.environment.max_turns} turns")
    print(f"tokens of a prompt: {tokens.mean():.0f} on average, {tokens[whole].mean():.0f} with every turn,")
    print(f"99th percentile {np.percentile(tokens, 99):.0f}, longest {tokens.max()}")
    fits = np.mean(tokens + new <= role.context)
    print(f"{fits:.0%} fit the context of {role.context} with {new} new tokens behind;")
    print(f"a context of {tokens.max() + new} holds all")


if __name__ == "__main__":
    main()
