"""Software engineering in SWE-Bench's form: repair a repository with three tools, graded by named tests alone.

`rows` reads tasks, `shipped` has those that ship, `sources` says which one a seed plays, `repository` (`patches`) makes
trees of them. `calls` are the tools; `sandbox` runs commands (`interpreters`, `supervised`, `usage`), `editor` edits
files. `grader` says what a tree is worth: `graded` is the tree, `grading` the program that runs tests in the sandbox.
`oracle` replays the reference fix. Trees of repositories are kept in a cache; those of episodes in a `workplace`, which
is removed.
"""

from crl.worlds.swe.environment import SweConfig

__all__ = ["SweConfig"]
