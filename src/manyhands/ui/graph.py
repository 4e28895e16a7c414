"""A job among its dependencies and dependants: gathered within bounds, laid out in layers from left
to right, drawn as SVG with links.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from markupsafe import Markup, escape
from msgspec import Struct

from manyhands.model.identity import name_key
from manyhands.model.job import Job
from manyhands.store.contract import Live, Reading
from manyhands.ui import words

DEPENDANTS_MAX: Final = 10_000  # counted for the question before a cancel
_NODES_MAX: Final = 60
_FAN_MAX: Final = 10  # neighbours of one job that are drawn; the rest are folded into one node
_STEPS_MAX: Final = 3  # away from the job, in either direction
_WIDTH, _HEIGHT = 172, 44
_GAP_X, _GAP_Y = 52, 12
_LABEL_LENGTH: Final = 19


class Node:
    """A job in the graph, or several that are folded into one."""

    def __init__(self, key: str, label: str, state: str, *, known: bool) -> None:
        self.key = key
        self.label = label
        self.state = state  # a state, "unknown" or "more"
        self.known = known  # it has a page
        self.layer = 0
        self.row = 0


class Graph(Struct, frozen=True):
    """Nodes by key, and edges from a dependency to its dependant."""

    nodes: dict[str, Node]
    edges: list[tuple[str, str]]
    centre: str


def dependants(live: Live, job: Job) -> list[str]:
    """Unfinished jobs that wait for this one, by its id or by its name."""
    found = list(live.dependants(job.job_id))
    if job.name is not None:
        found += live.dependants(name_key(job.namespace or "", job.name))
    return found


def dependants_of_all(live: Live, jobs: Iterable[Job], count_max: int) -> tuple[int, bool]:
    """The number of other unfinished jobs that depend on one of these, directly or indirectly, and
    whether that is all: a walk ends at ``count_max``.
    """
    stack = list(jobs)
    first = {job.job_id for job in stack}
    found = set(first)
    while stack:
        for job_id in dependants(live, stack.pop()):
            other = live.live_job(job_id)
            if other is None or job_id in found:
                continue
            if len(found) - len(first) >= count_max:
                return count_max, False
            found.add(job_id)
            stack.append(other)
    return len(found) - len(first), True


async def gather(store: Reading, job: Job) -> Graph | None:
    """The surroundings of a job; None if it has none."""
    gathering = _Gathering(store, job)
    if not job.depends_on and not gathering.dependants(job):
        return None
    await gathering.walk(job, lambda other: other.depends_on, upwards=True)
    await gathering.walk(job, gathering.dependants, upwards=False)
    _layer(gathering.graph)
    return gathering.graph


class _Gathering:
    """One walk in both directions."""

    def __init__(self, store: Reading, job: Job) -> None:
        self._store = store
        self._live = store.live
        self.graph = Graph({job.job_id: _node(job)}, [], job.job_id)

    def dependants(self, job: Job) -> Sequence[str]:
        return dependants(self._live, job)

    async def walk(
        self, start: Job, neighbours: Callable[[Job], Sequence[str]], *, upwards: bool
    ) -> None:
        frontier = [start]
        for _ in range(_STEPS_MAX):
            wanted = {job.job_id: neighbours(job) for job in frontier}
            keys = dict.fromkeys(key for ids in wanted.values() for key in ids[:_FAN_MAX])
            found = await self._find(keys)
            frontier = []
            for job_id, ids in wanted.items():
                for key in islice(ids, _FAN_MAX):
                    other = found.get(key)
                    node_key = other.job_id if other is not None else key
                    if node_key not in self.graph.nodes:
                        if len(self.graph.nodes) >= _NODES_MAX:
                            self._fold(job_id, 1, upwards=upwards)
                            continue
                        self.graph.nodes[node_key] = _node(other) if other else _unknown(key)
                        if other is not None:
                            frontier.append(other)
                    self._join(job_id, node_key, upwards=upwards)
                if len(ids) > _FAN_MAX:
                    self._fold(job_id, len(ids) - _FAN_MAX, upwards=upwards)

    async def _find(self, keys: Iterable[str]) -> dict[str, Job]:
        found: dict[str, Job] = {}
        finished: list[str] = []
        for key in keys:
            job = self._live.live_job(key)
            if job is None and "\0" in key:
                namespace, _, name = key.partition("\0")
                job = self._live.live_job(self._live.named(namespace, name) or "")
            if job is not None:
                found[key] = job
            elif "\0" not in key:
                finished.append(key)
        if finished:
            found |= await asyncio.to_thread(self._read, finished)
        return found

    def _read(self, job_ids: Sequence[str]) -> dict[str, Job]:
        jobs = ((job_id, self._store.find(job_id)) for job_id in job_ids)
        return {job_id: job for job_id, job in jobs if job is not None}

    def _join(self, job_id: str, other: str, *, upwards: bool) -> None:
        edge = (other, job_id) if upwards else (job_id, other)
        if edge not in self.graph.edges:
            self.graph.edges.append(edge)

    def _fold(self, job_id: str, count: int, *, upwards: bool) -> None:
        key = f"more:{'up' if upwards else 'down'}:{job_id}"
        node = self.graph.nodes.get(key)
        if node is None:
            node = self.graph.nodes[key] = Node(key, "0", "more", known=False)
            self._join(job_id, key, upwards=upwards)
        node.label = str(int(node.label) + count)


def _node(job: Job) -> Node:
    label = job.name or (job.job_id[-12:] if len(job.job_id) == 32 else job.job_id)
    return Node(job.job_id, words.shown(label, _LABEL_LENGTH), job.state.value, known=True)


def _unknown(key: str) -> Node:
    label = words.shown(key.rpartition("\0")[2], _LABEL_LENGTH)
    return Node(key, label, "unknown", known=False)


def _layer(graph: Graph) -> None:
    """Places each node to the right of its dependencies and, within a layer, near its
    neighbours.
    """
    needed: dict[str, list[str]] = {key: [] for key in graph.nodes}
    needing: dict[str, list[str]] = {key: [] for key in graph.nodes}
    for source, target in graph.edges:
        needed[target].append(source)
        needing[source].append(target)
    # As many rounds as there can be layers, so that even a cycle, which the engine refuses, would
    # end.
    for _ in graph.nodes:
        changed = False
        for key, node in graph.nodes.items():
            layer = max((graph.nodes[other].layer + 1 for other in needed[key]), default=0)
            if layer > node.layer and layer < len(graph.nodes):
                node.layer = layer
                changed = True
        if not changed:
            break
    # A node without a longer path to its dependants moves next to them.
    for key in sorted(graph.nodes, key=lambda key: -graph.nodes[key].layer):
        if needing[key]:
            node = graph.nodes[key]
            node.layer = max(
                node.layer, min(graph.nodes[other].layer for other in needing[key]) - 1
            )
    layers: dict[int, list[Node]] = {}
    for node in graph.nodes.values():
        layers.setdefault(node.layer, []).append(node)
    for layer in sorted(layers):
        rows = {key: graph.nodes[key].row for key in graph.nodes}
        layers[layer].sort(
            key=lambda node: (
                node.state == "more",
                _mean([rows[other] for other in needed[node.key]]),
            )
        )
        for row, node in enumerate(layers[layer]):
            node.row = row


def _mean(rows: Sequence[int]) -> float:
    return sum(rows) / len(rows) if rows else 0.0


def draw(graph: Graph) -> Markup:
    """The SVG. Screen readers get its links and words in order, from left to right."""
    nodes = sorted(graph.nodes.values(), key=lambda node: (node.layer, node.row))
    tallest = max(sum(other.layer == node.layer for other in nodes) for node in nodes)
    heights: dict[int, int] = {}
    for node in nodes:
        heights[node.layer] = heights.get(node.layer, 0) + 1
    width = (nodes[-1].layer + 1) * (_WIDTH + _GAP_X) - _GAP_X + 4
    height = tallest * (_HEIGHT + _GAP_Y) - _GAP_Y + 4

    def place(node: Node) -> tuple[float, float]:
        free = (tallest - heights[node.layer]) * (_HEIGHT + _GAP_Y) / 2
        return 2 + node.layer * (_WIDTH + _GAP_X), 2 + free + node.row * (_HEIGHT + _GAP_Y)

    parts = []
    for source, target in graph.edges:
        x, y = place(graph.nodes[source])
        to_x, to_y = place(graph.nodes[target])
        x, y, to_y = x + _WIDTH, y + _HEIGHT / 2, to_y + _HEIGHT / 2
        bend = max(_GAP_X / 2, (to_x - x) / 2)
        parts.append(
            f'<path class="edge" d="M{x:.0f} {y:.0f}C{x + bend:.0f} {y:.0f} {to_x - bend:.0f}'
            f' {to_y:.0f} {to_x - 3:.0f} {to_y:.0f}"/>'
            f'<path class="arrow" d="M{to_x - 7:.0f} {to_y - 4:.0f}l6 4l-6 4z"/>'
        )
    parts += [_draw_node(node, *place(node), centre=node.key == graph.centre) for node in nodes]
    layers = nodes[-1].layer + 1
    kind = f"graph layers layers-{layers}" if layers <= 2 * _STEPS_MAX + 1 else "graph"
    return Markup(  # noqa: S704 - whatever is foreign was escaped
        f'<svg class="{kind}" role="group" aria-label="Dependencies, from left to right"'
        f' width="{width}" height="{height}" viewBox="0 0 {width} {height}">{"".join(parts)}</svg>'
    )


def _draw_node(node: Node, x: float, y: float, *, centre: bool) -> str:
    label = f"{words.number(int(node.label))} more" if node.state == "more" else node.label
    word = {"more": "not drawn", "unknown": "not known"}.get(node.state, node.state)
    classes = f"node state-{node.state}" + (" centre" if centre else "")
    inner = (
        f'<g class="{classes}"><rect x="{x:.0f}" y="{y:.0f}" width="{_WIDTH}" height="{_HEIGHT}"'
        f' rx="8"/><rect class="mark-bar" x="{x:.0f}" y="{y + 6:.0f}" width="4"'
        f' height="{_HEIGHT - 12}" rx="2"/><text x="{x + 14:.0f}" y="{y + 19:.0f}">{escape(label)}'
        f'</text><text class="word" x="{x + 14:.0f}" y="{y + 35:.0f}">{word}'
        f"{', this job' if centre else ''}</text></g>"
    )
    if not node.known or centre:
        return inner
    return f'<a href="/ui/job/{escape(node.key)}">{inner}</a>'
