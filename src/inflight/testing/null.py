"""The null executor: a device that computes nothing, and yet shows every mistake in a plan.

In place of keys and values, the slot of position p holds a hash of tokens 0 … p, made from the slot of position p - 1
*as the block table finds it*. The next token is a function of the last slot, a token's log-probability one of the slot
before it, a vector one of the last. A block whose content is still to be loaded has no slots. Drafts are written into
the slots like any token. A wrong block, a block written twice, a skipped position, a lost token or a rejected draft
that counts as computed therefore changes the output, as in a model; and the output depends on nothing else, so that it
is the same under every strategy, policy, batch and preemption.

With several KV groups, or under a window, a slot holds the hash of its prefix and the group. A token is made from the
hash of its prefix as long as every slot in its groups' windows holds the right hash.

The adapter of a row goes into the hash of every prefix, as the adapter slot holds it.

The recurrent state of a row, where the capacity has copies of it, is the hash of all tokens that were computed in that
row, one by one, whatever the blocks hold: a chunk that goes on from another state than its own writes other hashes into
the slots.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

from msgspec import structs

from inflight.core.types.executor import Done, Pending
from inflight.core.types.kv_blocks import first_seen
from inflight.core.types.plan import (
    HOST,
    AdapterLoad,
    BatchPlan,
    Capacity,
    Chunk,
    NewRequest,
    Pooled,
    Sampled,
    Scored,
    StepResult,
    Transfer,
    Transferred,
)
from inflight.core.types.sampling import Adapter, TokenLogprob
from inflight.testing.suspension import StepSuspender, SuspendedStep

_MASK = (1 << 64) - 1
LAYERS = 8  # between which a step may be suspended


@dataclass(slots=True)
class _Row:
    start: NewRequest
    tokens: list[int]
    tables: list[list[int]]  # by KV group
    state: int = 0  # hash of the tokens computed
    root: int = 0  # of its adapter

    def prefix_values(self, end: int) -> list[int]:
        """Return the hash of each prefix of its tokens up to `end`, but the empty one."""
        return list(accumulate(self.tokens[:end], _mix, initial=self.root))[1:]


@dataclass(slots=True)
class _InFlight:
    """An asynchronous transfer or adapter's load: polls until its end is reported, and whether it fails."""

    transfer: Transfer | AdapterLoad
    polls: int
    fails: bool


class NullExecutor(StepSuspender):
    def __init__(
        self,
        capacity: Capacity,
        seconds: Callable[[BatchPlan], float] = lambda plan: 0.0,
        fate: Callable[[Transfer | AdapterLoad], tuple[int, bool]] = lambda transfer: (0, False),
        draft: Callable[[NewRequest, int], Sequence[int]] = lambda row, count: (),
        elsewhere: dict[str, dict[int, list[int]]] | None = None,
    ):
        """Create a device.

        Args:
            capacity: Its limits.
            seconds: Returns the reported duration of a step.
            fate: Returns, for a transfer beside the steps or an adapter's load, the number of polls before its end is
                reported, and whether it fails; it copies when it ends.
            draft: Returns at most so many drafts behind the tokens of a row, for a chunk that leaves them to the
                executor.
            elsewhere: Content of tiers other than the host, by tier and number; may outlive the executor.
        """
        self._capacity = capacity
        self._seconds = seconds
        self._fate = fate
        self._draft = draft
        self.in_flight: list[_InFlight] = []
        self._slots: dict[int, int] = {}  # block * block_size + offset → hash of the prefix that ends there
        self._host: dict[int, list[int]] = {}  # host block → its slots
        self._elsewhere = {} if elsewhere is None else elsewhere
        self._rows: dict[int, _Row] = {}
        self._snapshots: dict[int, int] = {}  # slot → state
        self._adapters: dict[int, Adapter] = {}  # slot → what it holds

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def submit(self, plan: BatchPlan) -> Pending:
        self._begin_step(plan)
        if plan.may_suspend and self._is_due is not None:
            return self._begin_suspendable(SuspendedStep(self._seconds(plan), LAYERS, partial(self._compute, plan)))
        return Done(self._compute(plan, self._seconds(plan)))

    def _begin_step(self, plan: BatchPlan) -> None:
        for transfer in plan.transfers:
            self._begin(transfer)
        for load in plan.adapter_loads:
            self._adapters.pop(load.slot, None)
            self.in_flight.append(_InFlight(load, *self._fate(load)))
        for freed in plan.freed_rows:
            self._rows.pop(freed, None)  # a plan that failed before it came here may have freed it
        for new in plan.new_requests:
            if new.row in self._rows:
                raise RuntimeError(f"row {new.row} was taken twice")
            root = self._root(new)
            state = self._snapshots[new.snapshot] if new.snapshot >= 0 else root
            self._rows[new.row] = _Row(new, list(new.token_ids), [[] for _ in self._capacity.windows], state, root)

    def _compute(self, plan: BatchPlan, seconds: float) -> StepResult:
        sampled, scored, pooled = [], [], []
        chunks = [self._drafted(chunk) if chunk.num_drafts else chunk for chunk in plan.chunks]
        for chunk in chunks:
            self._write(self._rows[chunk.row], chunk)
        for chunk in chunks:
            row = self._rows[chunk.row]
            if self._capacity.windows != (0,):
                self._read(row, chunk)
            if chunk.score:
                scored.append(self._score(row, chunk))
            if chunk.sample:
                sampled.append(Sampled(chunk.sequence_id, self._sample(row, chunk)))
            if chunk.pool:
                pooled.append(Pooled(chunk.sequence_id, self._pool(row, chunk)))
        return StepResult(plan.step, tuple(sampled), seconds, scored=tuple(scored), pooled=tuple(pooled))

    def poll(self, seconds: float = 0.0) -> tuple[Transferred, ...] | None:
        if not self.in_flight:
            return None
        ended = [one for one in self.in_flight if not one.polls]
        self.in_flight = [replace(one, polls=one.polls - 1) for one in self.in_flight if one.polls]
        for one in ended:
            if not one.fails and isinstance(one.transfer, Transfer) and one.transfer.tier != HOST:
                one.fails = not self._copy_elsewhere(one.transfer)
                continue
            if one.fails:
                continue
            if isinstance(one.transfer, AdapterLoad):
                self._adapters[one.transfer.slot] = one.transfer.adapter
            else:
                self._copy(one.transfer)
        error = "The copy failed."
        return tuple(Transferred(one.transfer.transfer_id, error if one.fails else None) for one in ended)

    def close(self) -> None:
        self._rows.clear()
        self._slots.clear()

    def _root(self, new: NewRequest) -> int:
        if new.adapter_slot < 0:
            return 0
        adapter = self._adapters[new.adapter_slot]  # what is being loaded is not there
        return _mix(adapter.number, zlib.crc32(adapter.name.encode()))

    def _drafted(self, chunk: Chunk) -> Chunk:
        """Return the chunk with the executor's drafts; where these are fewer than planned, it is shorter."""
        if chunk.draft_token_ids:
            return chunk
        row = self._rows[chunk.row]
        drafts = tuple(self._draft(structs.replace(row.start, token_ids=tuple(row.tokens)), chunk.num_drafts))
        known = chunk.length - chunk.num_drafts
        return structs.replace(chunk, length=known + len(drafts), sample=1 + len(drafts), draft_token_ids=drafts)

    def _begin(self, transfer: Transfer) -> None:
        if transfer.tier == HOST and not self._capacity.asynchronous_transfers:
            self._copy(transfer)
            return
        if transfer.kind in ("load", "receive"):
            for group, block in transfer.units():
                if group == self._capacity.state_group:
                    self._snapshots.pop(block, None)
                    continue
                for slot in self._slots_of(block):
                    self._slots.pop(slot, None)
        self.in_flight.append(_InFlight(transfer, *self._fate(transfer)))

    def _copy(self, transfer: Transfer) -> None:
        for block, host_block in zip(transfer.blocks, transfer.remote_blocks, strict=True):
            slots = self._slots_of(block)
            if transfer.kind == "store":
                self._host[host_block] = [self._slots[slot] for slot in slots]  # only full blocks are swapped
            else:
                self._slots.update(zip(slots, self._host.pop(host_block), strict=True))

    def _copy_elsewhere(self, transfer: Transfer) -> bool:
        """Copy to or from another tier, which keeps its content; return whether it had all blocks."""
        there = self._elsewhere.setdefault(transfer.tier, {})
        if transfer.kind in ("load", "receive") and not all(remote in there for remote in transfer.remote_blocks):
            return False
        for (group, block), remote in zip(transfer.units(), transfer.remote_blocks, strict=True):
            is_store, slots = transfer.kind in ("store", "send"), self._slots_of(block)
            if group == self._capacity.state_group:
                if is_store:
                    there[remote] = [self._snapshots[block]]
                else:
                    (self._snapshots[block],) = there[remote]
            elif is_store:
                there[remote] = [self._slots[slot] for slot in slots]
            else:
                self._slots.update(zip(slots, there[remote], strict=True))
        return True

    def _slots_of(self, block: int) -> range:
        size = self._capacity.block_size
        return range(block * size, (block + 1) * size)

    def _write(self, row: _Row, chunk: Chunk) -> None:
        for table, blocks in zip(row.tables, (chunk.new_blocks, *chunk.window_blocks), strict=False):
            table.extend(blocks)
        row.tokens.extend(chunk.draft_token_ids)
        size = self._capacity.block_size
        errors = self._recur(row, chunk)
        if self._capacity.windows != (0,):
            values = row.prefix_values(chunk.start + chunk.length)
            for group in range(len(row.tables)):
                for position in range(chunk.start, chunk.start + chunk.length):
                    slot = self._slot(row, position, size, group)
                    self._slots[slot] = _mix(values[position], group) ^ errors[position - chunk.start]
            return
        value = row.root if chunk.start == 0 else self._slots[self._slot(row, chunk.start - 1, size)]
        for position in range(chunk.start, chunk.start + chunk.length):
            value = _mix(value, row.tokens[position]) ^ errors[position - chunk.start]
            self._slots[self._slot(row, position, size)] = value

    def _recur(self, row: _Row, chunk: Chunk) -> list[int]:
        """Advance the state over the chunk, and copy it where the chunk says so.

        Returns:
            Its difference from the right state, by position.
        """
        if not self._capacity.state_snapshots:
            return [0] * chunk.length
        slots, errors = dict(chunk.snapshots), []
        right = row.prefix_values(chunk.start + chunk.length)
        for position in range(chunk.start, chunk.start + chunk.length):
            row.state = _mix(row.state, row.tokens[position])
            errors.append(row.state ^ right[position])
            if position + 1 in slots:
                self._snapshots[slots[position + 1]] = row.state
        return errors

    def _read(self, row: _Row, chunk: Chunk) -> None:
        """Make slots wrong where a wrong slot was seen, as in the next layer."""
        size, values = self._capacity.block_size, row.prefix_values(chunk.start + chunk.length)
        for position in range(chunk.start, chunk.start + chunk.length):
            if self._value(row, position) != values[position]:
                for group in range(len(row.tables)):
                    self._slots[self._slot(row, position, size, group)] ^= 1

    def _value(self, row: _Row, position: int) -> int:
        """Return the hash at a position, as the block tables find it: of a group with a window, within the window."""
        size, windows = self._capacity.block_size, self._capacity.windows
        if windows == (0,):
            return self._slots[self._slot(row, position, size)]
        values = row.prefix_values(position + 1)
        value = values[position]
        for group, window in enumerate(windows):
            for seen in range(first_seen(position, window), position + 1):
                if self._slots.get(self._slot(row, seen, size, group)) != _mix(values[seen], group):
                    value = _mix(value, 1 + group + seen)  # it is wrong
        return value

    def _score(self, row: _Row, chunk: Chunk) -> Scored:
        wanted = range(min(row.start.params.prompt_logprobs or 0, self._capacity.vocab_size))
        logprobs = []
        for position in chunk.score:
            before = self._value(row, position)
            token = row.tokens[position + 1]
            top = sorted(((other, _logprob(before, other)) for other in wanted), key=lambda entry: -entry[1])
            logprobs.append(TokenLogprob(token, _logprob(before, token), tuple(top)))
        return Scored(chunk.sequence_id, chunk.score.start + 1, tuple(logprobs))

    def _sample(self, row: _Row, chunk: Chunk) -> tuple[int, ...]:
        """Return the tokens behind the last positions, one by one while the drafts are right; the row keeps these."""
        first = chunk.start + chunk.length - chunk.sample
        known = len(row.tokens) - len(chunk.draft_token_ids)
        del row.tokens[known:]
        for index in range(chunk.sample):
            row.tokens.append(self._draw(row, self._value(row, first + index)))
            if chunk.draft_token_ids[index : index + 1] != (row.tokens[-1],):
                break
        return tuple(row.tokens[known:])

    def _pool(self, row: _Row, chunk: Chunk) -> tuple[float, ...]:
        last = self._value(row, chunk.start + chunk.length - 1)
        vector = [_logprob(last, index) for index in range(self._capacity.embedding_size)]
        pooling = row.start.pooling
        assert pooling is not None, "planned for requests that are pooled"
        vector = vector[: pooling.dimensions]
        length = math.hypot(*vector) if pooling.normalize else 1.0
        return tuple([one / length for one in vector])

    def _draw(self, row: _Row, value: int) -> int:
        """Return the token behind the known ones. value: of the last one's slot."""
        start = row.start
        output = len(row.tokens) - start.prompt_length
        if 0 <= output < len(start.forced_token_ids):
            return start.forced_token_ids[output]
        if start.params.temperature > 0:
            value = _mix(_mix(value, start.seed), start.sample_index)
        token = (value >> 20) % self._capacity.vocab_size
        while output < start.params.min_tokens and token in start.banned_token_ids:
            token = (token + 1) % self._capacity.vocab_size
        return token

    @staticmethod
    def _slot(row: _Row, position: int, size: int, group: int = 0) -> int:
        return row.tables[group][position // size] * size + position % size


def _logprob(value: int, token: int) -> float:
    return -float(_mix(value, token) >> 48) / 1024


def _mix(value: int, token: int) -> int:
    value = (value ^ (token + 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9 & _MASK
    return value ^ (value >> 31)
