"""Git repositories written without git: the same files give the same commit on every machine.

Author, date and message are fixed, so the name of a commit is a digest of its files alone. A repository is bare, has
any number of commits without parents, one per branch, and all objects in one pack (formats: git's documentation,
gitformat-pack and packed-refs).
"""

from __future__ import annotations

import hashlib
import shutil
import struct
import tempfile
import zlib
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path

_WHO = "complementary-rl <tasks@complementary-rl.invalid> 1700000000 +0000"
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = false\n\tbare = true\n"
_FILE, _FOLDER = b"100644", b"40000"
_KINDS = {b"commit": 1, b"tree": 2, b"blob": 3}


def commit_of(files: Mapping[str, str]) -> str:
    """Name of the commit (40 hexadecimal digits) of files by their paths."""
    return _objects(files)[0]


def write_repository(trees: Mapping[str, Mapping[str, str]], folder: Path) -> dict[str, str]:
    """Make a repository with a commit for the files of each branch, in place of another one that is at the folder.

    Returns the names of the commits by branch. It appears at once and complete: of several processes that write the
    same, one wins, and what is there already is left as it is.
    """
    objects: dict[str, bytes] = {}
    commits: dict[str, str] = {}
    for branch, files in trees.items():
        commits[branch], those = _objects(files)
        objects |= those
    lines = [f"{commits[branch]} refs/heads/{branch}\n" for branch in sorted(commits)]
    refs = "# pack-refs with: peeled fully-peeled sorted \n" + "".join(lines)
    if _refs_at(folder) == refs:
        return commits
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        unfinished.chmod(0o755)
        pack, index, digest = _pack(objects)
        for place, content in {
            f"objects/pack/pack-{digest}.pack": pack,
            f"objects/pack/pack-{digest}.idx": index,
            "packed-refs": refs.encode(),
            "HEAD": f"ref: refs/heads/{next(iter(trees))}\n".encode(),
            "config": _CONFIG.encode(),
        }.items():
            (unfinished / place).parent.mkdir(parents=True, exist_ok=True)
            (unfinished / place).write_bytes(content)
        (unfinished / "refs").mkdir()
        if folder.exists():
            shutil.rmtree(folder, ignore_errors=True)
        try:
            unfinished.rename(folder)
        except OSError:  # another process was first
            if _refs_at(folder) != refs:
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return commits


def _refs_at(folder: Path) -> str | None:
    try:
        return (folder / "packed-refs").read_text(encoding="utf-8")
    except OSError:
        return None


def _pack(objects: Mapping[str, bytes]) -> tuple[bytes, bytes, str]:
    """Pack and index of objects, each `kind size NUL content`, and the digest in the names of their files."""
    pack = bytearray(b"PACK" + struct.pack(">II", 2, len(objects)))
    places: dict[str, tuple[int, int]] = {}
    for name, whole in objects.items():
        kind, _, content = whole.partition(b" ")[0], *whole.partition(b"\0")[1:]
        size, packed = len(content), bytearray([_KINDS[kind] << 4 | len(content) & 15])
        size >>= 4
        while size:
            packed[-1] |= 128
            packed.append(size & 127)
            size >>= 7
        packed += zlib.compress(content)
        places[name] = len(pack), zlib.crc32(packed)
        pack += packed
    pack += hashlib.sha1(pack, usedforsecurity=False).digest()
    ordered = sorted(places)
    firsts = [int(name[:2], 16) for name in ordered]
    index = b"\xfftOc" + struct.pack(">I", 2)
    index += b"".join(struct.pack(">I", bisect_right(firsts, each)) for each in range(256))
    index += b"".join(map(bytes.fromhex, ordered))
    index += b"".join(struct.pack(">I", places[name][1]) for name in ordered)
    index += b"".join(struct.pack(">I", places[name][0]) for name in ordered)
    index += pack[-20:]
    index += hashlib.sha1(index, usedforsecurity=False).digest()
    return bytes(pack), index, pack[-20:].hex()


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
