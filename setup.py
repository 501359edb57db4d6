"""What pyproject.toml cannot say: a wheel has conf/, data/ and prefect.yaml inside the package, as crl/shipped/.

An editable install has none of it there: `crl.paths.shipped` finds them in the checkout.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
SHIPPED = ("conf", "data", "prefect.yaml")


class BuildWithFiles(build_py):
    """The package, and the files that it ships."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "crl" / "shipped"
        shutil.rmtree(target, ignore_errors=True)  # of an earlier build
        target.mkdir(parents=True)
        for name in SHIPPED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
            else:
                shutil.copyfile(ROOT / name, target / name)


setup(cmdclass={"build_py": BuildWithFiles})
