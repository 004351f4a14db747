"""Text parted into clusters, and a router that tells from a context which cluster it is of.

Each piece is a point: how often it has each triple of bytes, letters as small ones, in a table of
fixed size by a hash, weighted by how few pieces have it (tf-idf), scaled to length 1. k-means
finds the centres; a piece is of the nearest one in angle. A context x is routed likewise, by the
centres at length 1: p(k | context) is as exp(-|x - c_k|^2 / T). So one that says nothing yet is of
each alike. (The means themselves are the longer the more alike their texts are: a short context is
far from all of them, and would be of the shortest.) Nothing is trained for it, and whoever has the
centres parts a text alike.

Finding centres takes scikit-learn, which only the organiser needs; all else is numpy.

References:
    Gururangan et al., Scaling Expert Language Models with Unsupervised Domain Discovery (c-BTM),
    arXiv 2303.14177, sections 2.1 (tf-idf, k-means) and 2.4 (router).
"""

import random
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from swarmtrain.data.corpus import Corpus
from swarmtrain.data.stored import StoredText
from swarmtrain.foundation import atomic_file, regular_file
from swarmtrain.foundation.errors import UserError

Floats: TypeAlias = npt.NDArray[np.float32]

BUCKETS = 4096
"""Size of the table. Byte triples of plain text are some ten thousand, few of which count."""

TEMPERATURE = 0.1
"""T, as in the paper."""

EXPERTS_MAX = 64

ROUTER_FILE = "router.bin"
"""Its name in a state directory, and in the folder of an export."""

_MAGIC = b"swarmtrain router 1\n"
ROUTER_BYTES_MAX = len(_MAGIC) + 8 + 4 * BUCKETS * (EXPERTS_MAX + 1)

_PIECES_MAX = 4096
"""Pieces that centres are found by: more say little new, and each takes 16 KB meanwhile."""

_TRIPLE = 3


@dataclass(frozen=True, slots=True)
class Router:
    """Centres of clusters.

    Attributes:
        rarity: (BUCKETS,) weight of each place of the table.
        centres: (K, BUCKETS) centre of each cluster.
    """

    rarity: Floats
    centres: Floats

    @property
    def count(self) -> int:
        """Number of clusters."""
        return len(self.centres)

    def chances(self, text: bytes) -> Floats:
        """(K,) probability of each cluster, given a whole text."""
        point = _point(text, self.rarity)
        if not point.any():
            return _chances(np.zeros(self.count, np.float32))
        return _chances(((self.centres - point) ** 2).sum(axis=1))

    def cluster(self, text: bytes) -> int:
        """The likeliest cluster of a text."""
        return int(self.chances(text).argmax())

    def chances_along(self, text: bytes) -> Floats:
        """(len(text), K) probability of each cluster, given the text up to and with each byte."""
        squares = 0.0
        counts = np.zeros(BUCKETS, np.float32)
        along = np.zeros(self.count, np.float32)
        sizes = (self.centres**2).sum(axis=1)
        found = np.empty((len(text), self.count), np.float32)
        places = _places(text)
        for at in range(len(text)):
            if at >= _TRIPLE - 1:
                place = places[at - _TRIPLE + 1]
                weight = float(self.rarity[place])
                squares += weight * weight * (2 * float(counts[place]) + 1)
                counts[place] += 1
                along += weight * self.centres[:, place]
            length = max(squares, 1e-12) ** 0.5
            found[at] = 1.0 - 2 * along / length + sizes if squares else 0.0
        return _chances(found)

    def without(self, missing: Collection[int]) -> "Router":
        """Return the same without some clusters: texts of these go to the nearest of the others."""
        kept = [index for index in range(self.count) if index not in missing]
        return Router(self.rarity, self.centres[kept])

    def to_bytes(self) -> bytes:
        """The file that travels and is kept."""
        head = _MAGIC + struct.pack("<II", self.count, BUCKETS)
        return head + self.rarity.astype("<f4").tobytes() + self.centres.astype("<f4").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Router":
        """Read such a file, which may be a stranger's.

        Raises:
            ValueError: it is none.
        """
        start = len(_MAGIC) + 8
        if data[: len(_MAGIC)] != _MAGIC or len(data) < start:
            raise ValueError("it is no router")
        count, buckets = struct.unpack("<II", data[len(_MAGIC) : start])
        if not 1 <= count <= EXPERTS_MAX or buckets != BUCKETS:
            raise ValueError(f"it has {count} centres of {buckets} values")
        if len(data) != start + 4 * BUCKETS * (count + 1):
            raise ValueError("it is cut short")
        values = np.frombuffer(data, "<f4", offset=start).reshape(count + 1, BUCKETS)
        if not np.isfinite(values).all():
            raise ValueError("not all of its values are numbers")
        return cls(values[0].astype(np.float32), values[1:].astype(np.float32))

    @classmethod
    def read(cls, path: Path, count: int) -> "Router":
        """Read the file of a router of so many clusters.

        Raises:
            OSError: there is none, or it cannot be read.
            ValueError: it is another.
        """
        router = cls.from_bytes(regular_file.read(path, ROUTER_BYTES_MAX))
        if router.count != count:
            raise ValueError(f"it is of {router.count} experts")
        return router


def found_router(pieces: Sequence[bytes], count: int, seed: int) -> Router:
    """Find the centres of so many clusters; the same pieces and seed give the same ones.

    Args:
        pieces: the text, or some of its pieces.
        count: number of clusters.
        seed: seed of what is drawn.

    Raises:
        UserError: SWT-E102, scikit-learn is not here; SWT-E822, there are fewer pieces than
            clusters.
    """
    try:
        from sklearn.cluster import KMeans
    except ImportError as error:
        raise UserError(
            "SWT-E102",
            "Experts need scikit-learn, which is not installed here.",
            "The organiser's machine parts the text by it; peers do without.",
            "pip install 'swarmtrain[experts]'",
        ) from error
    if len(pieces) < count:
        raise UserError(
            "SWT-E822",
            f"The text has {len(pieces)} pieces, too few for {count} experts.",
            "Each expert trains on pieces of its own.",
            "Take fewer experts, more text, or a smaller data.piece_bytes.",
        )
    rarity = _rarity(pieces)
    points = np.stack([_point(piece, rarity) for piece in pieces])
    kmeans = KMeans(count, n_init=4, random_state=seed % 2**32).fit(points)
    centres = kmeans.cluster_centers_.astype(np.float32)
    return Router(rarity, centres / np.linalg.norm(centres, axis=1, keepdims=True))


def parted(
    count: int, seed: int, text: Corpus | StoredText, folder: Path, tell: Callable[[str], None]
) -> tuple[bytes, dict[bytes, int]]:
    """The router's file, and the cluster of each piece. Centres that were found once stay, as
    peers have trained by them.

    Args:
        count: number of clusters.
        seed: seed of what is drawn.
        text: the text.
        folder: place of the file.
        tell: hears what takes long.

    Raises:
        UserError: as `found_router`; SWT-E703, the file there is damaged or of another number.
    """
    path = folder / ROUTER_FILE
    if path.exists():
        try:
            router = Router.read(path, count)
        except (ValueError, OSError) as error:
            raise UserError(
                "SWT-E703",
                f"{path} cannot be used: {error}.",
                "It says which text each expert has trained on.",
                "Bring it back from a peer's state directory, where it lies under the same name.",
            ) from error
    else:
        tell(f"Parting {len(text.train)} pieces of text among {count} experts.")
        chosen = random.Random(seed).sample(text.train, min(_PIECES_MAX, len(text.train)))
        router = found_router([text.piece(name) for name in chosen], count, seed)
        atomic_file.write(path, router.to_bytes(), mode=0o600)
    names = (*text.train, *text.validation)
    return router.to_bytes(), {
        bytes.fromhex(name): router.cluster(text.piece(name)) for name in names
    }


def _rarity(pieces: Sequence[bytes]) -> Floats:
    """(BUCKETS,) log of the number of pieces by that of those that have a place."""
    having = np.zeros(BUCKETS, np.float32)
    for piece in pieces:
        having[np.unique(_places(piece))] += 1
    return np.log((1 + len(pieces)) / (1 + having)).astype(np.float32)


def _point(text: bytes, rarity: Floats) -> Floats:
    counted = np.bincount(_places(text), minlength=BUCKETS).astype(np.float32) * rarity
    length = float(np.sqrt((counted**2).sum()))
    return counted / length if length else counted


def _places(text: bytes) -> npt.NDArray[np.int64]:
    """Places in the table of all triples of bytes, in order."""
    values = np.frombuffer(text.lower(), np.uint8).astype(np.uint64)
    if len(values) < _TRIPLE:
        return np.empty(0, np.int64)
    triples = values[:-2] << np.uint64(16) | values[1:-1] << np.uint64(8) | values[2:]
    # Multiplicative hashing (Knuth): the upper bits of a product with the golden ratio.
    mixed = (triples * np.uint64(2654435761)) & np.uint64(0xFFFFFFFF)
    return (mixed >> np.uint64(20)).astype(np.int64)


def _chances(distances: Floats) -> Floats:
    """Probabilities along the last axis."""
    scores = -(distances - distances.min(axis=-1, keepdims=True)) / TEMPERATURE
    odds = np.exp(scores)
    chances: Floats = odds / odds.sum(axis=-1, keepdims=True)
    return chances


def name_in(expert: int, name: str) -> str:
    """The name of an expert's parameter in a file of all."""
    return f"experts.{expert}.{name}"
