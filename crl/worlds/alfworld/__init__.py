"""ALFWorld's text games, natively: an engine of our own over the official game files.

| module | what it does |
|---|---|
| `environment` | the config and a wave of episodes |
| `files` | where the game files are, what a missing or damaged one means, and which game a seed plays |
| `pddl` | the rules and the first state, as a game file writes them |
| `facts`, `rules` | a state, and what can be done in it |
| `grammar`, `speech` | what is said; `put X in/on Y` or `move X to Y` |
| `game` | a game and its states, put together of all that |
| `oracle` | a player that sees the whole state |
| `lessons` | what a game teaches, in sentences that are true of it |

The engine is written from the formats, and reads rules and texts from the user's files; it holds none of them.
"""

from crl.worlds.alfworld.environment import AlfworldConfig, AlfworldEnvironment

__all__ = ["AlfworldConfig", "AlfworldEnvironment"]
