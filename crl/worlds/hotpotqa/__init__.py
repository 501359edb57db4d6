"""HotpotQA: questions over two paragraphs, with a search; the authors' files, others of their form, or our own.

`questions` reads records and says what an answer is worth, `files` finds and reads files, ours too, `search` finds
paragraphs, `sides` says which question a seed means, `oracle` knows the answer and what an episode teaches. Nothing
here writes files.

Source: HotpotQA (Yang et al., EMNLP 2018; hotpotqa.github.io, CC BY-SA 4.0). No line or text of it is copied.
"""

from crl.worlds.hotpotqa.environment import HotpotQAConfig

__all__ = ["HotpotQAConfig"]
