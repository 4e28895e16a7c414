"""The description of the package: the README without what works in the repository alone.

Links to files and pictures beside it would lead nowhere on a package index. Used while a package is
built: see `tool.hatch.metadata.hooks` in pyproject.toml.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"!\[[^\]]*\]\((?!https?:)[^)]*\)")
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", re.DOTALL)
# A table of pictures, or a line of them, of which only the frame is left.
_FRAME = re.compile(r"^(?:[|\-: ]+\n)+\n?", re.MULTILINE)
_BLANK = re.compile(r"\n{3,}")


def described(readme: str) -> str:
    """The text without relative links and without pictures. Fenced examples stay as they are."""
    parts = re.split(r"(^```.*?^```$)", readme, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _unlinked(part) for part in parts)


def _unlinked(text: str) -> str:
    """Only tables that held pictures lose their frames: others keep the line below the heading."""
    blocks = text.split("\n\n")
    kept = []
    for block in blocks:
        bare = _PICTURE.sub("", block)
        if bare != block:
            bare = _FRAME.sub("", f"{bare}\n").strip("\n")
            if not bare:
                continue
        kept.append(_LINK.sub(r"\1", bare))
    return _BLANK.sub("\n\n", "\n\n".join(kept))


class Description(MetadataHookInterface):
    """Sets the field `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by the build."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": described(text)}
