"""Heads against references in torch: the same logits, the same drafts, and tokens as without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from msgspec import structs

from inflight.core.types.plan import Capacity, Chunk, NewRequest
from inflight.core.types.sampling import SamplingParams
from inflight.execution.backends import open_backend
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.checkpoints.checkpoint import Checkpoint
from inflight.execution.drafters.heads import head_drafter
from inflight.execution.drafters.heads.eagle3 import load_eagle3
from inflight.execution.drafters.heads.head_decoder import HeadDecoder
from inflight.execution.drafters.heads.head_drafter import HeadDrafter
from inflight.execution.drafters.heads.mtp import load_mtp
from inflight.execution.drafters.heads.recent_hidden import KEPT, RecentHidden
from inflight.execution.memory import kv_shape
from inflight.execution.model import Model
from inflight.execution.weights import load_weights
from inflight.models.registry import read_folder

from ..driver import BLOCK, backends

if TYPE_CHECKING:
    from .heads_reference import HeadReference

LENGTH, BLOCKS = 160, 48
HeadReferenceOf = Callable[[str], "HeadReference"]


@pytest.fixture(scope="session")
def reference_of(tmp_path_factory: pytest.TempPathFactory) -> HeadReferenceOf:
    built: dict[str, HeadReference] = {}

    def get(name: str) -> HeadReference:
        if name not in built:
            from .heads_reference import eagle3, mtp

            folder = tmp_path_factory.mktemp(f"head-{name}")
            if name == "eagle3":
                built[name] = eagle3(folder / "model", folder / "head")
            else:
                built[name] = mtp("qwen2" if name == "mimo" else name, folder / "model", as_mimo=name == "mimo")
        return built[name]

    return get


@dataclass
class Loaded:
    """A model and its head on a backend."""

    backend: Any
    model: Model
    head: HeadDecoder
    capacity: Capacity
    shape: Any
    width: int  # of hidden states
    graphs: Any = None  # of the head's passes

    @classmethod
    def of(cls, reference: HeadReference, isa: str, dtype: Any = "float32", max_tokens: int = 128) -> Loaded:
        spec = read_folder(reference.folder, to_run=True)
        backend = opened(isa, dtype)
        weights = load_weights(spec, Checkpoint(reference.folder), backend, LENGTH)
        if reference.head is None:
            head = load_mtp(spec, weights, Checkpoint(reference.folder), backend)
        else:
            head = load_eagle3(reference.head, spec, weights, backend, LENGTH)
        return cls(
            backend,
            Model(spec, weights, backend, max_tokens, 64),
            HeadDecoder(head, backend, spec.hidden_size, max_tokens, 64),
            Capacity(BLOCKS, BLOCK, 8, LENGTH, spec.vocab_size),
            kv_shape(spec, BLOCK),
            spec.hidden_size,
        )

    def caches(self) -> tuple[Any, Any]:
        """The model's, and the head's."""
        own = self.head.head.kv_shape(BLOCK, self.shape.quantized)
        return tuple(self.backend.kv_cache(shape, BLOCKS + 1) for shape in (self.shape, own))

    def recent(self, rows: int) -> RecentHidden:
        taps = self.model.taps(self.head.head.taps)
        return RecentHidden(self.backend, taps, self.width, rows, self.model.max_tokens)

    def drafter(self, cache: Any) -> HeadDrafter:
        recent = self.recent(self.capacity.max_rows + 1)
        return HeadDrafter(self.head, self.passes, recent, self.backend, cache, self.capacity)

    @property
    def passes(self) -> Any:
        """Passes of the head; replayed where a pass is filled up."""
        buckets = getattr(self.backend, "buckets", None)
        if buckets is None:
            return self.head
        from inflight.execution.backends.torch.capture import CapturedPasses

        from ..backends.torch.test_captured_engine import Replays

        self.graphs = Replays()
        return CapturedPasses(self.head, self.graphs, buckets)

    def put(self, state: InputBatch, position: int, token: int) -> None:
        """Behind the position of row 0, as a draw does."""
        state.keep(np.array([0]), np.array([position]), np.array([token]))
        if state.mirror is not None:
            state.mirror.tokens[0, position + 1] = token


def opened(isa: str, dtype: Any) -> Any:
    """torch: as on a GPU, where passes are filled up for graphs."""
    if isa != "torch":
        return open_backend(dtype, 2, isa)
    from inflight.execution.backends.torch.buckets import Buckets

    from ..backends.torch.opened import on_cpu

    return on_cpu(dtype, buckets=Buckets((1, 2), (4, 32)))


NAMES = ("eagle3", "deepseek_v3", "glm4_moe", "mimo")


@pytest.fixture(params=[*backends()[:2], "torch"])
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_reference(reference_of: HeadReferenceOf, isa: str, name: str, dtype: str) -> None:
    """Behind the model's hidden states, in two pieces, and behind one of its own. In bfloat16 up to rounding."""
    reference, count = reference_of(name), 40
    loaded = Loaded.of(reference, isa, dtype)
    tokens = np.random.default_rng(3).integers(0, loaded.capacity.vocab_size, count).tolist()
    state: InputBatch = loaded.backend.input_batch(loaded.capacity, BLOCKS)
    cache, own = loaded.caches()
    recent = loaded.recent(1)
    new = NewRequest(0, tuple(tokens), count, SamplingParams(), 0, 0)
    chunk = Chunk(0, 0, 0, count, (7, 3, 5, 9), 0)
    state.update([chunk], [new])
    batch = loaded.backend.prepare(state, cache, [chunk])
    loaded.model.forward(batch)
    first = recent.keep_pass(count)

    def read(start: int, length: int, places: Sequence[int], own_states: bool = False) -> np.ndarray:
        batch = loaded.backend.prepare(state.shifted(1), own, [Chunk(0, 0, start, length, (), 0)])
        if own_states:
            loaded.head.take_own(batch, places)
        else:
            loaded.head.take_taps(batch, recent.taps, places)
        loaded.head.forward(batch)
        logits: Any = loaded.head.logits(batch, range(length))
        return np.array(logits.array[:length] if hasattr(logits, "array") else logits.tensor[:length].numpy())

    found = [read(0, 21, range(first, first + 21)), read(21, count - 22, range(first + 21, first + count - 1))]
    expected = reference.logits(tokens).numpy()
    if dtype == "bfloat16":
        finite = np.isfinite(expected)
        assert np.corrcoef(np.concatenate(found)[finite], expected[finite])[0, 1] > 0.98
        return
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-4)
    drafts = reference.drafts(tokens, 2)
    assert drafts[0] == int(found[1][-1].argmax())
    loaded.put(state, count - 1, drafts[0])
    assert int(read(count - 1, 1, [count - 23], own_states=True).argmax()) == drafts[1]


class Steps:
    """Steps of one row by hand: the model's tokens, and the head's drafts."""

    def __init__(self, loaded: Loaded, tokens: Sequence[int]) -> None:
        self._loaded, self.tokens, self.computed = loaded, list(tokens), 0
        self._cache, own = loaded.caches()
        self.drafter = loaded.drafter(own)
        self._state = loaded.backend.input_batch(loaded.capacity, BLOCKS)
        self.drafter.capture_ahead(self._state, 60.0)
        self._new = [NewRequest(0, tuple(tokens), len(tokens), SamplingParams(temperature=0), 0, 0)]

    def compute(self, count: int, drafts: int = 0) -> list[int]:
        """The next so many tokens; then drafts behind the last of them, which is known."""
        from inflight.core.types.plan import BatchPlan

        end = self.computed + count
        blocks = tuple(range(-(-self.computed // BLOCK), -(-(end + drafts) // BLOCK)))
        chunk = Chunk(0, 0, self.computed, count + drafts, blocks, 1 + drafts, num_drafts=drafts)
        new, self._new = self._new, []
        plan = BatchPlan(0, (chunk,), tuple(new))
        self.drafter.leave(plan, self._state)
        self._state.update(plan.chunks, plan.new_requests)
        self.drafter.begin(plan, self._state)
        found: list[int] = []
        if drafts:
            (one,) = self.drafter.draft([chunk], self._state)
            found = list(one)
            chunk = structs.replace(chunk, draft_token_ids=one)
        batch = self._loaded.backend.prepare(self._state, self._cache, [chunk])
        self._loaded.model.forward(batch)
        self.drafter.computed(batch, [chunk], self._state)
        self.computed = end
        return found

    def say(self, token: int) -> None:
        """Append tokens that are known."""
        self._loaded.put(self._state, len(self.tokens) - 1, token)
        self.tokens.append(token)


@pytest.mark.parametrize("name", NAMES)
def test_drafts_are_those_of_the_reference(reference_of: HeadReferenceOf, isa: str, name: str) -> None:
    """However tokens came: a prompt in pieces longer and shorter than what is kept, decodes with drafts and without,
    more of them than are kept, wrong drafts, and blocks that begin."""
    reference = reference_of(name)
    random = np.random.default_rng(4)
    loaded = Loaded.of(reference, isa)
    steps = Steps(loaded, random.integers(0, loaded.capacity.vocab_size, 3 + KEPT + 20).tolist())
    for count in (3, KEPT + 12, 8):
        steps.compute(count)
    asked = [True] * 4 + [False] * (KEPT + 3) + [True, False, True]
    for step, is_asked in enumerate(asked):
        steps.say(int(random.integers(0, loaded.capacity.vocab_size)))
        drafts = steps.compute(1, drafts=3 if is_asked else 0)
        if is_asked:
            assert drafts == reference.drafts(steps.tokens, 3), step
    if isa == "torch":
        sizes = len(loaded.backend.buckets.padding())
        assert len(loaded.graphs.made) == sizes, "nothing is captured while a request waits"
        assert sum(one.count for one in loaded.graphs.made) > 10


def test_after_a_long_time_without_drafts_nothing_is_read(
    reference_of: HeadReferenceOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read again, and draft, once a draft is asked for."""
    reference = reference_of("eagle3")
    loaded = Loaded.of(reference, backends()[-1])
    passes = list[int]()
    forward = loaded.head.forward
    monkeypatch.setattr(head_drafter, "PATIENCE", 3)
    monkeypatch.setattr(loaded.head, "forward", lambda batch: [passes.append(batch.num_tokens), forward(batch)])
    steps = Steps(loaded, np.random.default_rng(5).integers(0, 300, LENGTH - 20).tolist())
    for count in (KEPT + 1, 1, 1, 50, 1):
        steps.compute(count)
    assert passes == [KEPT]
    steps.compute(LENGTH - 20 - steps.computed)
    steps.say(7)
    assert len(steps.compute(1, drafts=2)) == 2 and passes[1] <= KEPT
