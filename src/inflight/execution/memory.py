"""Measure memory, and size KV blocks, checkpoints of recurrent state and host blocks by it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from inflight.core.types.kv_blocks import max_blocks, max_sequence_tokens
from inflight.counted import UNBOUNDED
from inflight.execution.backends.protocol import Device, KVShape, LayerState
from inflight.execution.kv.kv_groups import KVGroups, kept, one_group
from inflight.models.errors import ModelError
from inflight.models.sequence_memory import default_checkpoints
from inflight.models.spec import ModelSpec

GIB = 1024**3
# Of the memory that is free once weights are loaded, for keys and values. The rest stays for activations, the page
# cache from which the next start loads its weights, and whatever else the machine does.
_HOST_SHARE = 0.5
# Of all of a GPU's memory, for weights, the largest step, keys and values. The rest stays for graphs, for what CUDA
# takes itself, and for what a step needs beside what the largest one was seen to need.
GPU_SHARE = 0.9


class MachineMemory(Struct, frozen=True):
    """Bytes that this process may have in all, and how many of them are still free."""

    total: int
    available: int
    limited_by: str  # "the machine", "the container" or "the GPU"
    # Of a GPU: bytes that this process has of it (none: it is the host's memory), the share of all of it that it may
    # have, and what the largest step takes of what is free.
    held: int | None = None
    share: float = GPU_SHARE
    step: int = 0

    @property
    def for_kv(self) -> int:
        """Return the bytes for keys and values where --kv-memory is not given."""
        if self.held is None:
            return int(self.available * _HOST_SHARE)
        return min(int(self.total * self.share) - self.held, self.available) - self.step

    @property
    def left(self) -> int:
        """Return the largest number of bytes that may be requested."""
        return self.available - self.step


class KVSize(Struct, frozen=True):
    """How many blocks, their bytes together, and why so many."""

    num_blocks: int
    nbytes: int
    reason: str


def kv_shape(
    model: ModelSpec,
    block_size: int,
    quantized: bool = False,
    groups: KVGroups | None = None,
    is_fp8: bool = False,
) -> KVShape:
    """Return the shape of a model's blocks of `block_size` tokens, in int8 if quantized, or in fp8. groups: of its
    layers; None: one group. Raises ModelError where the size is no multiple of 16."""
    if block_size < 16 or block_size % 16:
        raise ModelError(f"a block must hold a multiple of 16 tokens, not {block_size}; set --block-size 16 or 32.")
    places = zip(model.layers, (groups or one_group(model)).of_layer, strict=True)
    layers = tuple(None if group is None else kept(layer.mixer, group) for layer, group in places)
    return KVShape(block_size, layers, quantized, is_fp8)


def states_of(model: ModelSpec) -> tuple[LayerState | None, ...]:
    """Return the shape of each layer's recurrent state, None for layers without; empty where no layer has one."""
    states = tuple(layer.mixer.recurrent_state(model.hidden_size) for layer in model.layers)
    return states if any(states) else ()


def kv_size(
    shape: KVShape,
    bytes_per_block: int,
    *,
    max_num_seqs: int,
    max_model_len: int,
    kv_memory_gib: float | None = None,
    num_blocks: int | None = None,
    memory: MachineMemory | None = None,
    windows: Sequence[int] = (0,),
    longest_chunk: int = UNBOUNDED,
    drafter_bytes: int = 0,
) -> KVSize:
    """Blocks to allocate, to be asked once the weights are loaded.

    Either `kv_memory_gib` or `num_blocks` may be given; else it is `memory.for_kv`, or all that `max_num_seqs`
    sequences of `max_model_len` tokens could ever fill, whichever is less. `memory` defaults to this machine's.
    `windows` of the KV groups, and the longest chunk that is computed at once, in tokens, say what a sequence fills.
    `drafter_bytes`: what a drafter keeps beside the model, of each block. Raises ModelError for less than one block and
    for more than is free.
    """
    if memory is None:
        memory = machine_memory()
    bytes_per_block += drafter_bytes
    if kv_memory_gib is not None and num_blocks is not None:
        raise ModelError("--kv-memory and --num-blocks both set the size of the KV cache; give one of them.")
    if num_blocks is not None:
        blocks, why = num_blocks, "as --num-blocks asks"
        if blocks < 1:
            raise ModelError(f"--num-blocks must be at least 1, not {blocks}: a sequence needs a block of its own.")
    elif kv_memory_gib is not None:
        blocks, why = _blocks_of(kv_memory_gib, shape, bytes_per_block), f"as --kv-memory {kv_memory_gib:g} asks"
    else:
        usable = max_num_seqs * max_blocks(max_model_len, shape.block_size, windows, longest_chunk)
        why = f"all that {max_num_seqs} sequences of {max_model_len:,} tokens can fill"
        blocks, why = _default_blocks(shape, bytes_per_block, usable, why, memory)
    nbytes = blocks * bytes_per_block
    taken = gib(nbytes) + (f" ({gib(blocks * drafter_bytes)} of it for drafts)" if drafter_bytes else "")
    if nbytes > memory.left:
        beside = f" beside the {gib(memory.step)} that the largest step takes" if memory.step else ""
        raise ModelError(
            f"the KV cache would take {taken}, but only {gib(memory.left)} of the "
            f"{gib(memory.total)} of {memory.limited_by} are free{beside}; lower --kv-memory or --num-blocks."
        )
    tokens = max_sequence_tokens(blocks, shape.block_size, windows, longest_chunk, max_model_len)
    held = f"{tokens:,} tokens" + (f" of a sequence, in {len(windows)} groups" if len(windows) > 1 else "")
    text = f"{taken} for {blocks:,} KV blocks of {shape.block_size} tokens ({held}), {why}"
    if tokens < max_model_len:
        text += f"; longer requests are refused, though the model allows {max_model_len:,} tokens"
    return KVSize(blocks, nbytes, text)


class StateSize(Struct, frozen=True):
    """Slots for snapshots of recurrent state, the bytes of these and of the rows' live states together, and why."""

    snapshots: int
    nbytes: int
    reason: str


def state_size(
    bytes_per_state: int,
    max_num_seqs: int,
    state_memory_gib: float | None = None,
    memory: MachineMemory | None = None,
    of_host: int = 0,
) -> StateSize:
    """Size the memory of recurrent states. Call it before `kv_size`, which has the rest.

    Args:
        bytes_per_state: Of a sequence over all layers; 0: the model has none.
        max_num_seqs: Rows with a live state.
        state_memory_gib: For the snapshots, beside the live states of all rows and of padding; None:
            `sequence_memory.default_checkpoints`.
        memory: That is free; None: this machine's.
        of_host: Snapshots that `--kv-cache-host` adds (`sequence_memory.host_checkpoints`).

    Raises:
        ModelError: Less than one snapshot is asked for, more than is free, or memory that the model has no use for.
    """
    if not bytes_per_state:
        if state_memory_gib is not None:
            raise ModelError(
                f"--state-memory is {state_memory_gib:g} GiB, but the layers of this model keep 0 bytes of recurrent "
                "state; leave it out."
            )
        return StateSize(0, 0, "")
    memory = machine_memory() if memory is None else memory
    live = (max_num_seqs + 1) * bytes_per_state
    live_states = f"{gib(live)} for the live states of {max_num_seqs} sequences and of padding"
    free = f"the {gib(memory.available)} that {memory.limited_by} has free"
    if live + bytes_per_state > memory.available:
        raise ModelError(f"{live_states}, and one snapshot, would be more than {free}; lower --max-num-seqs.")
    if state_memory_gib is None:
        count, why = _default_snapshots(max_num_seqs, bytes_per_state, memory.available - live)
    else:
        count, asked = int(state_memory_gib * GIB // bytes_per_state), f"--state-memory {state_memory_gib:g}"
        why = f"as {asked} asks"
        if count < 1:
            raise ModelError(f"{asked} GiB is less than one snapshot ({gib(bytes_per_state)}); give at least that.")
        if live + count * bytes_per_state > memory.available:
            raise ModelError(f"{asked} GiB beside {live_states} is more than {free}; lower it, or --max-num-seqs.")
    nbytes = live + (count + of_host) * bytes_per_state
    if nbytes > memory.available:
        raise ModelError(
            f"{gib(nbytes)} of recurrent states, {gib(of_host * bytes_per_state)} of it as a quarter of "
            f"--kv-cache-host, are more than {free}; lower --kv-cache-host."
        )
    why += f", and {gib(of_host * bytes_per_state)} of --kv-cache-host" if of_host else ""
    return StateSize(count + of_host, nbytes, f"{gib(count * bytes_per_state)}, {why}, beside {live_states}")


def _default_snapshots(max_num_seqs: int, bytes_per_state: int, free_bytes: int) -> tuple[int, str]:
    """Return the number of snapshots, and why."""
    count = default_checkpoints(max_num_seqs, bytes_per_state, free_bytes)
    if count < 2 * max_num_seqs:
        return count, "a quarter of what is free beside"
    if count > 2 * max_num_seqs:
        return count, f"{count / max_num_seqs:.0f} for each sequence, since they are small"
    return count, "two for each sequence"


def swap_blocks(swap_space_gib: float | None, bytes_per_block: int, option: str = "--swap-space") -> int:
    """Return the number of host blocks for preempted sequences, or of a tier. option: that says so. Raises ModelError
    for less than one block and for more than is free."""
    if swap_space_gib is None:
        return 0
    memory = machine_memory()
    blocks = int(swap_space_gib * GIB // bytes_per_block)
    if blocks < 1:
        raise ModelError(f"{option} {swap_space_gib:g} GiB is less than one KV block ({gib(bytes_per_block)}).")
    if blocks * bytes_per_block > memory.available:
        raise ModelError(
            f"{option} {swap_space_gib:g} GiB is more than the {gib(memory.available)} that {memory.limited_by} "
            "has free; lower it."
        )
    return blocks


def _blocks_of(kv_memory_gib: float, shape: KVShape, bytes_per_block: int) -> int:
    if not 0 < kv_memory_gib < float("inf"):
        raise ModelError(f"--kv-memory must be a number of GiB above 0, not {kv_memory_gib:g}.")
    blocks = int(kv_memory_gib * GIB // bytes_per_block)
    if blocks < 1:
        raise ModelError(
            f"--kv-memory {kv_memory_gib:g} GiB is less than one block of {shape.block_size} tokens "
            f"({gib(bytes_per_block)}), so no sequence could run; give at least that."
        )
    return blocks


def _default_blocks(
    shape: KVShape, bytes_per_block: int, usable: int, used: str, memory: MachineMemory
) -> tuple[int, str]:
    """Return the number of blocks, and why. usable: blocks that can ever be filled, by what is `used`."""
    affordable = memory.for_kv // bytes_per_block
    if affordable < 1 and memory.held is not None:
        raise ModelError(
            f"{memory.limited_by} has {gib(memory.total)}, of which --gpu-memory-utilization {memory.share:g} lets "
            f"this engine have {gib(memory.total * memory.share)}; weights take {gib(memory.held)}, the largest step "
            f"{gib(memory.step)}, and {gib(memory.available)} are free: that leaves nothing for a KV block of "
            f"{shape.block_size} tokens ({gib(bytes_per_block)}). Free memory, take a smaller model or a higher share, "
            "or lower --max-num-batched-tokens or --max-num-seqs."
        )
    if affordable < 1:
        raise ModelError(
            f"{gib(memory.available)} of the {gib(memory.total)} of {memory.limited_by} are free, of which half is "
            f"too little for one KV block of {shape.block_size} tokens ({gib(bytes_per_block)}); free memory, or take "
            "a smaller model, --kv-cache-dtype int8 or --dtype bfloat16."
        )
    if usable <= affordable:
        return usable, used
    if memory.held is None:
        return affordable, f"half of the {gib(memory.available)} that {memory.limited_by} has free"
    why = f"what weights ({gib(memory.held)}) and the largest step ({gib(memory.step)}) leave of {memory.share:.0%} of "
    why += f"the {gib(memory.total)} of {memory.limited_by}"
    if memory.available < memory.total * memory.share - memory.held:
        why += f", of which {gib(memory.available)} are free"
    return affordable, why


def gib(nbytes: float) -> str:
    """Write bytes for people: in GiB, or a smaller unit where GiB would read 0.0."""
    for unit, size in (("GiB", GIB), ("MiB", 1024**2), ("KiB", 1024)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{int(nbytes)} bytes"


# -- the machine ----------------------------------------------------------------------------------------------------
def memory_of(device: Device) -> MachineMemory:
    """Return the memory that a backend may use: its device's own, else this machine's."""
    own = device.own_memory()
    return machine_memory() if own is None else MachineMemory(own.total, own.free, "the GPU", own.held)


def machine_memory(root: Path = Path("/")) -> MachineMemory:
    """Measure the memory of this process: the machine's, or its control group's limit where that is lower.

    `root` stands in for the file system's root in tests. Page cache that can be dropped counts as free.
    """
    total, available = _system_memory(root)
    limited_by = "the machine"
    for limit, used in _control_groups(root):
        if limit < total:
            total, limited_by = limit, "the container"
        available = min(available, max(0, limit - used))
    return MachineMemory(total, available, limited_by)


def _system_memory(root: Path) -> tuple[int, int]:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        fields = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
        return fields["MemTotal"], fields["MemAvailable"]
    except (OSError, KeyError, ValueError, IndexError):
        # Not Linux: the total is known, what is free is not. Half of it is a guess that --kv-memory corrects.
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return total, total // 2


def _control_groups(root: Path) -> Iterator[tuple[int, int]]:
    """Yield limit and use, in bytes, of each memory control group that this process is in, version 2 or 1."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            mount, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            mount = root / "sys/fs/cgroup/memory"
        else:
            continue
        folder = mount / path.strip("/")
        # A limit may sit on any group above; inside a container the path is often not visible, but the mount is.
        for group in (folder, *folder.parents):
            if group == mount.parent:
                break
            yield from _limit(group, *names)


def _limit(group: Path, limit_name: str, used_name: str, droppable_name: str) -> Iterator[tuple[int, int]]:
    limit, used = _text(group / limit_name).strip(), _text(group / used_name).strip()
    if not (limit.isdigit() and used.isdigit()):  # "max", or no such file
        return
    counters = dict(line.split(None, 1) for line in _text(group / "memory.stat").splitlines() if " " in line)
    yield int(limit), max(0, int(used) - int(counters.get(droppable_name, 0)))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
