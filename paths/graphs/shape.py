"""What decides which graph can run a batch."""

from __future__ import annotations

from dataclasses import dataclass

from paths.graphs.config import GraphMode


@dataclass(frozen=True, kw_only=True)
class BatchShape:
    """A live batch, before padding. All of it is known on the host."""

    num_tokens: int
    num_reqs: int
    query_len: int | None  # tokens per request where that is one number and all rows decode, else None
    max_length: int  # most keys that a row sees

    def sparse(self, index_topk: int) -> bool:
        """Whether some row must rank its keys."""
        return self.max_length > index_topk


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """A graph's key, and what a batch is padded to. mode NONE: nothing is padded."""

    mode: GraphMode
    num_tokens: int
    num_reqs: int  # 0 of a PIECEWISE graph that reads token rows only, and fits any number
    query_len: int | None  # of a FULL graph
    sparse: bool
