// States of recurrent layers: where each layer's lies, in sizes and offsets, their memory, and which states a pass
// reads and leaves.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "pass/array.h"
#include "pass/backend.h"
#include "pool/memory.h"
#include "types.h"

namespace inflight {

// States of recurrent layers, and which of the model's layers have one (the others keep nothing here).
struct StateCacheMemory {
  StateCache cache{};
  std::vector<LayerState> layers;
  Memory memory;
  Format format{};
};

// layers: (inputs, channels, heads, key_dim, value_dim) each. Sections begin on cache lines.
inline std::int64_t lay_out_state(std::vector<LayerState>& layers, const std::vector<std::vector<std::int64_t>>& given,
                                  Format format) {
  constexpr std::int64_t line = 64;
  const auto lined = [](std::int64_t bytes) { return (bytes + line - 1) / line * line; };
  std::int64_t at = 0;
  for (const auto& one : given) {
    if (one.size() != 5 || *std::min_element(one.begin(), one.end()) < 0 || one[0] >= max_kernel)
      refuse("a layer's state is five sizes, of which the first, inputs that are kept, is below " +
             std::to_string(max_kernel));
    LayerState layer{one[0], one[1], one[2], one[3], one[4], 0, 0, 0, 0};
    layer.padded_keys = (layer.key_dim + 3) / 4 * 4;
    layer.padded_values = (layer.value_dim + panel - 1) / panel * panel;
    layer.inputs_at = at;
    at += lined(layer.inputs * layer.channels * item_bytes(format));
    layer.matrices_at = at;
    at += lined(layer.heads * layer.padded_keys * layer.padded_values * 4);
    layers.push_back(layer);
  }
  return at;
}

inline std::int64_t bytes_per_state(const Backend& backend, const std::vector<std::vector<std::int64_t>>& layers) {
  std::vector<LayerState> found;
  return lay_out_state(found, layers, backend.format());
}

inline std::shared_ptr<StateCacheMemory> state_cache(const Backend& backend,
                                                     const std::vector<std::vector<std::int64_t>>& layers,
                                                     std::int64_t rows, std::int64_t snapshots) {
  if (rows < 1 || snapshots < 0) refuse("a state cache needs at least one row");
  auto held = std::make_shared<StateCacheMemory>();
  held->format = backend.format();
  held->cache = {nullptr, lay_out_state(held->layers, layers, backend.format()), rows, snapshots};
  if (held->cache.bytes < 1) refuse("none of these layers has a state");
  held->memory = Memory(static_cast<std::size_t>((rows + snapshots) * held->cache.bytes));
  held->cache.data = static_cast<char*>(held->memory.data());
  return held;
}

// The row's state becomes that of the snapshot.
inline void begin_state(Backend& backend, StateCacheMemory& held, std::int64_t row, std::int64_t slot) {
  const StateCache& cache = held.cache;
  if (row < 0 || row >= cache.rows || slot < 0 || slot >= cache.snapshots)
    refuse("row " + std::to_string(row) + " cannot begin from snapshot " + std::to_string(slot) + ": there are " +
           std::to_string(cache.rows) + " rows and " + std::to_string(cache.snapshots) + " snapshots");
  backend.run([&](Pool&, const RowKernels&) {
    std::memcpy(cache.data + row * cache.bytes, cache.data + (cache.rows + slot) * cache.bytes, cache.bytes);
  });
}

// Which states the chunks of a pass go on with, and what is copied of them.
struct StateArrays {
  Array rows, snapshot_start, positions, slots;
  StateMetadata all;

  StateArrays(const StateCacheMemory& held, const AttentionMetadata& pass, nb::handle rows_, nb::handle snapshot_start_,
              nb::handle positions_, nb::handle slots_)
      : rows(rows_, "state rows", Kind::i32, {pass.chunks}),
        snapshot_start(snapshot_start_, "snapshot_start", Kind::i32, {pass.chunks + 1}),
        positions(positions_, "snapshot positions", Kind::i32, {any}),
        slots(slots_, "snapshot slots", Kind::i32, {positions.size(0)}) {
    all = {rows.data<std::int32_t>(), snapshot_start.data<std::int32_t>(), positions.data<std::int32_t>(),
           slots.data<std::int32_t>()};
    if (all.snapshot_start[0] != 0 || all.snapshot_start[pass.chunks] != positions.size(0))
      refuse("snapshot_start must begin with 0 and end with the number of snapshots");
    for (std::int64_t c = 0; c < pass.chunks; ++c) {
      if (all.rows[c] < 0 || all.rows[c] >= held.cache.rows)
        refuse("there is no state of row " + std::to_string(all.rows[c]) + "; there are " +
               std::to_string(held.cache.rows));
      if (all.snapshot_start[c] > all.snapshot_start[c + 1]) refuse("snapshot_start must ascend");
      std::int64_t past = pass.context_len[c];
      const std::int64_t end = past + pass.query_start[c + 1] - pass.query_start[c];
      for (std::int64_t i = all.snapshot_start[c]; i < all.snapshot_start[c + 1]; past = all.positions[i++])
        if (all.positions[i] <= past || all.positions[i] > end || all.slots[i] < 0 ||
            all.slots[i] >= held.cache.snapshots)
          refuse("a snapshot of position " + std::to_string(all.positions[i]) + " in slot " +
                 std::to_string(all.slots[i]) + " cannot be taken of a chunk that ends at " + std::to_string(end) +
                 ", with " + std::to_string(held.cache.snapshots) + " slots");
    }
  }
};

}  // namespace inflight
