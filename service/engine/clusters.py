"""Clusters of a text's vectors, by Ward's method on cosine distances, in whose place their means
stand: a document then has fewer vectors.

The tree is built by chains of nearest neighbours (Murtagh, 1983), in the order that scipy's
linkage and fcluster have, as sentence-transformers' HierarchicalTokenPooling calls them. The
products are exact and all else is done number by number, so each step has one result everywhere.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from addnorm.service.arithmetic import add_rows
from addnorm.service.engine.batch import Floats
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.heads import unit
from addnorm.service.engine.manifest import Clusters
from addnorm.service.engine.whole_numbers import WholeNumbers, products


class Merge(NamedTuple):
    """One step: two nodes become the next. Nodes below n are vectors, n is the first merge."""

    first: int
    second: int
    height: float


def join_clusters(vectors: Floats, rules: Clusters) -> Floats:
    """Vectors `[n, w]` of length 1 -> fewer of them."""
    joined = _means(vectors, rules) if rules.factor > 1 else vectors
    return unit(joined) if rules.normalize else joined


def _means(vectors: Floats, rules: Clusters) -> Floats:
    """Protected vectors as they are, then the mean of each cluster."""
    protected, others = vectors[: rules.num_protected], vectors[rules.num_protected :]
    num_clusters = max(int(len(others) // rules.factor), 1)
    if num_clusters >= len(others):
        return vectors
    labels = _labels(_tree(_distances(others)), num_clusters)
    means = np.empty((labels.max() + 1, vectors.shape[1]), np.float32)
    for label, mean in enumerate(means):
        members = others[labels == label]
        add_rows(members, mean)
        mean /= np.float32(len(members))
    return np.concatenate([protected, means])


def _distances(vectors: Floats) -> NDArray[np.float64]:
    """1 - cosine, `[n, n]`, from 0 to 2, in float32 as PyTorch has it."""
    numbers, exponent = WholeNumbers.of(vectors)
    cosines = np.ldexp(products(numbers, numbers), 2 * exponent).astype(np.float32)
    distances: NDArray[np.float64] = np.clip(np.float32(1) - cosines, 0, 2).astype(np.float64)
    return distances


def _tree(distances: NDArray[np.float64]) -> list[Merge]:
    """n - 1 merges, lowest first. distances: `[n, n]`, changed."""
    num = len(distances)
    np.fill_diagonal(distances, np.inf)
    sizes, chain, steps = np.ones(num), list[int](), list[Merge]()
    for _ in range(num - 1):
        if not chain:
            chain.append(int(np.flatnonzero(sizes)[0]))
        while True:
            place = chain[-1]
            nearest = int(distances[place].argmin())
            height = float(distances[place, nearest])
            # the one before, where it is as near: else the chain might go round
            if len(chain) > 1 and distances[place, chain[-2]] <= height:
                nearest, height = chain[-2], float(distances[place, chain[-2]])
                break
            chain.append(nearest)
        del chain[-2:]
        first, second = sorted((place, nearest))
        steps.append(Merge(first, second, height))
        _join(distances, sizes, first, second, height)
        checkpoint()
    return _numbered(sorted(steps, key=lambda step: step.height), num)


def _join(
    distances: NDArray[np.float64],
    sizes: NDArray[np.float64],
    first: int,
    second: int,
    height: float,
) -> None:
    """The second place stands for both from now on, at the distances of Ward (1963)."""
    size_1, size_2 = sizes[first], sizes[second]
    sizes[first] = 0
    others = np.flatnonzero(sizes)
    others = others[others != second]
    share = 1.0 / (size_1 + size_2 + sizes[others])
    to_first, to_second = distances[others, first], distances[others, second]
    squares = (sizes[others] + size_1) * share * to_first * to_first
    squares += (sizes[others] + size_2) * share * to_second * to_second
    squares -= sizes[others] * share * height * height
    distances[others, second] = distances[second, others] = np.sqrt(np.maximum(squares, 0.0))
    distances[first], distances[:, first] = np.inf, np.inf
    sizes[second] = size_1 + size_2


def _numbered(steps: list[Merge], num: int) -> list[Merge]:
    """Places of the chains -> numbers of nodes."""
    node_of = list(range(num))
    parents = list(range(2 * num - 1))

    def root(node: int) -> int:
        while parents[node] != node:
            node = parents[node]
        return node

    numbered = list[Merge]()
    for index, (first, second, height) in enumerate(steps):
        nodes = sorted((root(node_of[first]), root(node_of[second])))
        for node in nodes:
            parents[node] = num + index
        numbered.append(Merge(nodes[0], nodes[1], height))
    return numbered


def _labels(tree: list[Merge], num_clusters: int) -> NDArray[np.int64]:
    """The cluster of each vector, from 0, at most so many; numbered in the order in which scipy's
    walk of the tree leaves them."""
    num = len(tree) + 1
    # the lowest height at which there are not more clusters; equal heights are one
    limit = tree[num - 1 - num_clusters].height
    labels, num_labels = np.zeros(num, np.int64), 0
    walk = [(2 * num - 2, False)]  # a node, and whether its children were walked
    while walk:
        node, is_left = walk.pop()
        first, second, height = tree[node - num]
        if height <= limit:
            labels[_leaves(tree, node)] = num_labels
            num_labels += 1
        elif is_left:
            for child in (first, second):
                if child < num:
                    labels[child] = num_labels
                    num_labels += 1
        else:
            walk.append((node, True))
            walk += [(child, False) for child in (second, first) if child >= num]
    return labels


def _leaves(tree: list[Merge], node: int) -> list[int]:
    """The vectors below a node."""
    num, leaves, nodes = len(tree) + 1, list[int](), [node]
    while nodes:
        if (node := nodes.pop()) < num:
            leaves.append(node)
        else:
            nodes += tree[node - num][:2]
    return leaves
