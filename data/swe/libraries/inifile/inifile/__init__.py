"""Settings in sections."""

from inifile.document import Document
from inifile.errors import IniError
from inifile.reader import loads
from inifile.writer import dumps

__all__ = ["Document", "IniError", "dumps", "loads"]
