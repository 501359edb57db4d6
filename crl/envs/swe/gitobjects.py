"""A git repository of one commit, written without git: the same files give the same commit on every machine.

Author, date and message are fixed, so the name of the commit is a digest of the files alone. The repository is bare and
has nothing but that commit: no history in which something could be looked up.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path

_WHO = "complementary-rl <tasks@complementary-rl.invalid> 1700000000 +0000"
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = false\n\tbare = true\n"
_FILE, _FOLDER = b"100644", b"40000"


def commit_of(files: Mapping[str, str]) -> str:
    """Name of the commit (40 hexadecimal digits) of files by their paths."""
    return _objects(files)[0]


def write_repository(files: Mapping[str, str], folder: Path) -> str:
    """Make the repository at a folder, which is not there yet or has it already; the name of its commit.

    It appears at once and complete: of several processes that write it, one wins.
    """
    name, objects = _objects(files)
    if (folder / "refs" / "heads" / "main").is_file():
        return name
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        unfinished.chmod(0o755)
        for digest, content in objects.items():
            place = unfinished / "objects" / digest[:2] / digest[2:]
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(zlib.compress(content))
        heads = unfinished / "refs" / "heads"
        heads.mkdir(parents=True)
        (heads / "main").write_text(f"{name}\n", encoding="utf-8")
        (unfinished / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
        (unfinished / "config").write_text(_CONFIG, encoding="utf-8")
        _put(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return name


def _put(unfinished: Path, folder: Path) -> None:
    try:
        os.rename(unfinished, folder)  # noqa: PTH104 - Path.rename says the same, os.rename refuses a full folder
    except OSError:
        if not (folder / "refs" / "heads" / "main").is_file():
            raise


def _objects(files: Mapping[str, str]) -> tuple[str, dict[str, bytes]]:
    """Name of the commit, and all objects by name."""
    objects: dict[str, bytes] = {}

    def keep(kind: str, content: bytes) -> str:
        whole = f"{kind} {len(content)}\0".encode() + content
        digest = hashlib.sha1(whole, usedforsecurity=False).hexdigest()
        objects[digest] = whole
        return digest

    def tree(prefix: str) -> str:
        entries: dict[str, tuple[bytes, str]] = {}
        for path in files:
            if path.startswith(prefix):
                first, slash, _ = path[len(prefix) :].partition("/")
                if slash and first not in entries:
                    entries[first] = _FOLDER, tree(f"{prefix}{first}/")
                elif not slash:
                    entries[first] = _FILE, keep("blob", files[path].encode())
        # git sorts a folder as if its name ended with a slash
        ordered = sorted(entries, key=lambda name: f"{name}/" if entries[name][0] == _FOLDER else name)
        content = [
            entries[name][0] + b" " + name.encode() + b"\0" + bytes.fromhex(entries[name][1]) for name in ordered
        ]
        return keep("tree", b"".join(content))

    root = tree("")
    name = keep("commit", f"tree {root}\nauthor {_WHO}\ncommitter {_WHO}\n\nAs reported\n".encode())
    return name, objects
