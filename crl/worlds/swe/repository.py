"""Trees of a row's repository: as its base commit has them, with the hidden tests, and with the reference fix.

Each is exported once into a cache, without any history: `.git` of a base tree is new, with one commit. A cached tree is
complete where it exists (it is renamed last). An episode is given a copy. No command of `git` ever runs in a tree that
an actor has written to: its settings could name programs.

    <cache>/<digest of repository and commit>/base        files of base_commit, and a new .git
    <cache>/<digest of repository, commit and diffs>/tested    base with test_patch
                                                    /fixed     base with patch
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crl.errors import BadInput
from crl.paths import quoted, short
from crl.worlds.swe.patches import apply, git_environment
from crl.worlds.swe.rows import Row

WHERE = "method.families[].environment.repositories"
_SECONDS = 600
_QUIET = ("-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false")
_WRITER = "complementary-rl <tasks@complementary-rl.invalid> 1700000000 +0000"
_NOBODY = {"GIT_AUTHOR_NAME": "base", "GIT_AUTHOR_EMAIL": "base@localhost",
           "GIT_COMMITTER_NAME": "base", "GIT_COMMITTER_EMAIL": "base@localhost"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Clones:
    """Local git repositories in a folder: `owner/name`, `owner__name` or `name`, each a clone or a bare one."""

    folder: Path

    def of(self, row: Row) -> Path:
        """The git directory of a row's repository. Raises BadInput where there is none."""
        name = row.repo.rsplit("/", 1)[-1]
        names = [row.repo, row.repo.replace("/", "__"), name]
        for folder in [self.folder / each for each in names] + [self.folder / f"{each}.git" for each in names]:
            for found in (folder / ".git", folder):
                if (found / "HEAD").is_file() and (found / "objects").is_dir():
                    return found
                if found.is_file() and found.name == ".git":  # a work tree of another clone
                    return Path(_git(None, "rev-parse", "--absolute-git-dir", cwd=folder))
        raise BadInput(
            f"there is no git repository {short(row.repo)} in {short(self.folder)}",
            expected="a clone, bare or not, in a folder " + ", ".join(dict.fromkeys(names)),
            where=f"row {row.instance_id}; {WHERE}",
            next_step=f"git clone ADDRESS {quoted(self.folder / names[1])}, with the address of {short(row.repo)}",
        )

    def check(self, rows: Iterable[Row]) -> list[Path]:
        """The repositories of rows. Raises BadInput for the first row whose repository or base commit is not here."""
        by_repository: dict[Path, list[Row]] = defaultdict(list)
        for row in rows:
            by_repository[self.of(row)].append(row)
        for repository, those in by_repository.items():
            asked = "".join(f"{row.base_commit}^{{commit}}\n" for row in those)
            answers = _git(repository, "cat-file", "--batch-check", stdin=asked).splitlines()
            for row, answer in zip(those, answers, strict=True):
                if not answer.endswith(tuple("0123456789")):
                    raise BadInput(
                        f"the repository {short(repository)} has no commit {short(row.base_commit)}",
                        expected="the base_commit of the row",
                        where=f"row {row.instance_id}, column base_commit",
                        next_step=f"git -C {quoted(repository)} fetch --all, or correct the row",
                    )
        return list(by_repository)


class Repositories:
    """The cache of trees."""

    def __init__(self, of: Callable[[Row], Path], cache: Path) -> None:
        """
        Args:
            of: the git directory of a row's repository.
            cache: where trees are kept; made where it is missing, for this user alone.
        """
        self.of, self.cache = of, cache

    def base(self, row: Row) -> Path:
        """The tree that an episode begins with, `.git` with one commit included."""
        return self._made(row, "base", (), lambda tree: self._export(row, tree))

    def tested(self, row: Row) -> Path:
        """The base with the hidden tests."""
        return self._with(row, "tested", "test_patch", row.test_patch)

    def fixed(self, row: Row) -> Path:
        """The base with the reference fix."""
        return self._with(row, "fixed", "patch", row.patch)

    def _with(self, row: Row, name: str, column: str, diff: str) -> Path:
        def make(tree: Path) -> None:
            copy(self.base(row), tree)
            apply(diff, tree, column=column, instance=row.instance_id)
            shutil.rmtree(tree / ".git")  # only now: without it, git does not heed .gitattributes

        return self._made(row, name, (diff,), make)

    def _made(self, row: Row, name: str, of: Sequence[str], make: Callable[[Path], None]) -> Path:
        folder = self._folder(row, of)
        if (folder / name).is_dir():
            return folder / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder))
        try:
            (temporary / name).mkdir()
            make(temporary / name)
            try:
                (temporary / name).rename(folder / name)
            except OSError:  # another process was first
                if not (folder / name).is_dir():
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return folder / name

    def _folder(self, row: Row, of: Sequence[str]) -> Path:
        key = "\0".join([str(self.of(row).resolve()), row.base_commit, *of])
        return self.cache / hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:24]

    def _export(self, row: Row, tree: Path) -> None:
        repository = self.of(row)
        commit = _git(repository, "rev-parse", "--verify", f"{row.base_commit}^{{commit}}")
        moment = _git(repository, "show", "-s", "--format=%ct", commit)
        index = {"GIT_INDEX_FILE": str(tree.parent / "index")}
        _git(repository, "read-tree", commit, more=index)
        # Not `git archive`: it leaves out what .gitattributes names.
        _git(repository, f"--work-tree={tree}", "checkout-index", "--all", "--force", more=index)
        if os.path.lexists(tree / ".git"):
            raise BadInput(
                f"the commit {commit} holds a `.git`", where=f"row {row.instance_id}", next_step="leave out the row"
            )
        when = {"GIT_AUTHOR_DATE": f"{moment} +0000", "GIT_COMMITTER_DATE": f"{moment} +0000"}
        _git(None, "init", "--quiet", "--template=", "--initial-branch=main", str(tree))
        _git(tree / ".git", f"--work-tree={tree}", "add", "--all", "--force", ".", cwd=tree)
        _git(tree / ".git", "commit", "--quiet", "--allow-empty", "--message=Base", more={**_NOBODY, **when})
        _git(tree / ".git", "repack", "-a", "-d", "--quiet")
        shutil.rmtree(tree / ".git" / "logs", ignore_errors=True)
        _set_times(tree, int(moment))


def write_repository(trees: Mapping[str, Mapping[str, str]], folder: Path) -> dict[str, str]:
    """A bare repository with one commit, without parents, for the files of each branch.

    Returns the names of the commits by branch: the same files give the same ones on every machine.
    """
    stream = []
    for branch, files in trees.items():
        stream.append(f"commit refs/heads/{branch}\ncommitter {_WRITER}\ndata 12\nAs reported\n")
        stream += [f"M 100644 inline {path}\ndata {len(text.encode())}\n{text}\n" for path, text in files.items()]
    folder.mkdir(parents=True, exist_ok=True)
    _git(None, "init", "--quiet", "--bare", "--template=", "--initial-branch=main", str(folder))
    _git(folder, "fast-import", "--quiet", "--force", stdin="".join(stream))
    listed = _git(folder, "for-each-ref", "--format=%(objectname) %(refname:lstrip=2)").splitlines()
    commits = {branch: name for name, _, branch in (line.partition(" ") for line in listed)}
    return {branch: commits[branch] for branch in trees}


def copy(source: Path, target: Path, *, some: bool = False) -> None:
    """Copy what is in a folder into another, links as links.

    `some`: what cannot be read, or whose path is too long for the system, is left out; else this raises OSError.
    """
    done = subprocess.run(
        ["cp", "-a", "--reflink=auto", f"{source}/.", str(target)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if some else subprocess.PIPE, check=False,
    )  # fmt: skip
    if done.returncode != 0 and not some:
        said = done.stderr.decode(errors="replace").strip()[-300:]
        raise OSError(f"{source} cannot be copied to {target}: {said}. Make room there, or let this user read it")


def _set_times(tree: Path, moment: int) -> None:
    """The time of the commit on every file: a listing is the same in every copy."""
    for folder, folders, files in os.walk(tree):
        for name in [*folders, *files]:
            os.utime(Path(folder, name), (moment, moment), follow_symlinks=False)
    os.utime(tree, (moment, moment))


def _git(
    repository: Path | None,
    *arguments: str,
    stdin: str = "",
    more: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """What a command of git says. Raises BadInput where it fails, or there is no git."""
    which = [] if repository is None else [f"--git-dir={repository}"]
    try:
        done = subprocess.run(
            ["git", *_QUIET, *which, *arguments], input=stdin.encode("utf-8", "surrogateescape"), capture_output=True,
            timeout=_SECONDS, check=True, cwd=cwd, env={**git_environment(repository or Path("/")), **(more or {})},
        )  # fmt: skip
    except FileNotFoundError:
        raise BadInput("git is not installed", next_step="apt install git", where=WHERE) from None
    except subprocess.SubprocessError as error:
        said = (getattr(error, "stderr", b"") or b"").decode(errors="replace").strip()[-300:]
        raise BadInput(
            f"git {arguments[0]} fails: {said or error}",
            expected="a complete local repository",
            where=str(repository),
            next_step="clone the repository anew",
        ) from None
    return done.stdout.decode("utf-8", "surrogateescape").strip()
