"""Three task folders in Harbor's form, as people write them, and one that installs a package."""

from __future__ import annotations

from pathlib import Path

FOLDERS = {
    "greet": {
        "instruction.md": "Write `hello` into /app/greeting.txt.",
        "task.toml": 'version = "1.0"\n[metadata]\ndifficulty = "easy"\n[agent]\ntimeout_sec = 900.0\n'
        "[verifier]\ntimeout_sec = 600.0\n[environment]\nbuild_timeout_sec = 600.0\ncpus = 1\nmemory_mb = 1024\n",
        "environment/Dockerfile": "# A folder and no more\nFROM ubuntu:24.04\n\nWORKDIR /app\n",
        "tests/test.sh": "#!/bin/bash\ncd /tests\nif diff -q /app/greeting.txt expected.txt\nthen echo 1 > "
        "/logs/verifier/reward.txt\nelse echo 0 > /logs/verifier/reward.txt\nfi\n",
        "tests/expected.txt": "hello\n",
        "solution/solve.sh": "echo hello > /app/greeting.txt\n",
    },
    "sum": {
        "instruction.md": "Add the numbers of /data/numbers.txt. Write the sum into sum.txt.",
        "task.toml": 'schema_version = "1.3"\n[task]\nname = "a/sum"\n[environment.env]\nUNIT = "m"\n',
        "environment/Dockerfile": "FROM python:3.12-slim AS base\nARG where=/data\nENV NAME=sum \\\n    MORE='a b' "
        "LD_PRELOAD=/none.so\n"
        'LABEL a="b"\nCOPY --chmod=644 ["numbers.txt", "${where}/"]\nWORKDIR /workspace/here\nCOPY code .\n',
        "environment/numbers.txt": "3\n4\n5\n",
        "environment/code/tool.py": "print('a tool')\n",
        "environment/code/lib/more.py": "",
        "tests/test.sh": "python /tests/check.py\n",
        "tests/check.py": "import json, os\nfrom pathlib import Path\n"
        "assert Path.cwd() == Path('/workspace/here') and Path('lib/more.py').exists()\n"
        "assert (os.environ['NAME'], os.environ['MORE'], os.environ['UNIT']) == ('sum', 'a b', 'm')\n"
        "there = Path('sum.txt').is_file()\n"
        "right = there and Path('sum.txt').read_text().strip() == '12'\n"
        "reward = {'reward': 0.25 * there + 0.75 * right, 'there': there, 'why': 'because'}\n"
        "Path('/logs/verifier/reward.json').write_text(json.dumps(reward))\n",
        "solution/solve.sh": "cp /solution/sum.txt sum.txt\n",
        "solution/sum.txt": "12\n",
    },
    "home": {
        "instruction.md": "Put a file `key` into your home folder, and one into /tmp.",
        "task.toml": "[verifier.env]\nHIDDEN = 'yes'\n",
        "environment/Dockerfile": "FROM scratch\nADD start.txt /srv/start.txt\nWORKDIR /srv\nCMD [\"bash\"]\n",
        "environment/start.txt": "begin\n",
        "tests/test.sh": '[ "$HIDDEN" = yes ] && [ -f start.txt ] && [ -f ~/key ] && [ -f /tmp/key ]\n'
        "echo $((1 - $?)) > /logs/verifier/reward.txt\n",
        "solution/solve.sh": "touch ~/key /tmp/key\n",
    },
}  # fmt: skip
INSTALLS = {
    **FOLDERS["greet"],
    "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\nRUN apt-get update && \\\n    apt-get install -y jq\n",
}


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def write_all(folder: Path) -> Path:
    """The three folders."""
    for name, files in FOLDERS.items():
        write(folder / name, files)
    return folder
