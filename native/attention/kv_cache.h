// The KV cache: each layer's place in a block, in sizes and offsets, and the blocks' memory.
#pragma once
#include <nanobind/stl/array.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pass/array.h"
#include "pass/backend.h"
#include "pool/memory.h"
#include "types.h"

namespace inflight {

// A layer's place in a block, but for where it is.
inline KVLayer kv_layer_of(std::int64_t kv_heads, std::int64_t key_dim, std::int64_t value_dim,
                           std::int64_t block_size, Format format, bool bytes) {
  const auto is_width = [](std::int64_t dim) { return dim >= 0 && dim % 2 == 0 && dim <= max_head_dim; };
  if (kv_heads < 1 || block_size < 16 || block_size % 16 != 0 || key_dim < 2 || !is_width(key_dim) ||
      !is_width(value_dim))
    refuse("a KV shape needs heads, a block size that is a multiple of 16, and even head dimensions of at most " +
           std::to_string(max_head_dim));
  KVLayer layer{};
  layer.block_size = block_size, layer.kv_heads = kv_heads, layer.bytes = bytes;
  layer.key_dim = key_dim, layer.value_dim = value_dim;
  layer.padded_dim = (value_dim + panel - 1) / panel * panel;
  const std::int64_t values = bytes ? 4 : per_step(format);
  layer.key_lanes = (key_dim + values - 1) / values * block_size;
  layer.scales_at = layer.key_lanes + block_size / values * layer.padded_dim;
  layer.head_lanes = layer.scales_at + (bytes ? (value_dim > 0 ? 2 : 1) * block_size : 0);
  return layer;
}

// Of each layer of the model its place in a block of its group, one after the other; one without heads takes none. A
// block is as large as its largest group's layers together.
struct KVLayout {
  std::vector<KVLayer> layers;
  std::vector<std::int64_t> groups, offsets;  // of each layer; in lanes
  std::int64_t group_count = 1, block_lanes = 0;

  KVLayout(std::int64_t block_size, bool bytes, const std::vector<std::array<std::int64_t, 4>>& kept, Format format) {
    std::vector<std::int64_t> ends;  // of each group's layers
    for (const auto& [group, kv_heads, key_dim, value_dim] : kept) {
      layers.push_back(kv_heads ? kv_layer_of(kv_heads, key_dim, value_dim, block_size, format, bytes) : KVLayer{});
      if (group < 0 || group >= static_cast<std::int64_t>(kept.size()))
        refuse("there is no group " + std::to_string(group) + " of " + std::to_string(kept.size()) + " layers");
      ends.resize(std::max(ends.size(), static_cast<std::size_t>(group) + 1));
      groups.push_back(group), offsets.push_back(ends[group]);
      ends[group] += kv_heads * layers.back().head_lanes;
    }
    if (!ends.empty()) {
      group_count = static_cast<std::int64_t>(ends.size());
      block_lanes = *std::ranges::max_element(ends);
    }
    if (block_lanes == 0) refuse("a KV cache needs a layer that keeps keys");
  }
};

struct KVCacheMemory {
  KVLayout layout;
  std::int64_t blocks, block_size;
  Format format;
  bool bytes;  // int8
  Memory memory;
  std::uint32_t* data() const { return static_cast<std::uint32_t*>(memory.data()); }
};

inline std::int64_t bytes_per_block(const Backend& backend, std::int64_t block_size, bool quantized,
                                    const std::vector<std::array<std::int64_t, 4>>& kept) {
  return KVLayout(block_size, quantized, kept, backend.format()).block_lanes * 4;
}

// kept: of each layer its group, heads, width of keys and of values.
inline std::shared_ptr<KVCacheMemory> kv_cache(const Backend& backend, std::int64_t block_size, bool quantized,
                                               const std::vector<std::array<std::int64_t, 4>>& kept,
                                               std::int64_t blocks) {
  if (blocks < 1) refuse("a KV cache needs at least one block");
  KVLayout layout(block_size, quantized, kept, backend.format());
  Memory memory(static_cast<std::size_t>(blocks * layout.block_lanes * 4));
  for (std::size_t i = 0; i < layout.layers.size(); ++i) {
    KVLayer& layer = layout.layers[i];
    layer.data = static_cast<std::uint32_t*>(memory.data()) + layout.offsets[i];
    layer.block_lanes = layout.block_lanes, layer.blocks = blocks;
  }
  return std::make_shared<KVCacheMemory>(std::move(layout), blocks, block_size, backend.format(), quantized,
                                         std::move(memory));
}

inline void copy_blocks(Backend& backend, KVCacheMemory& cache, const std::vector<std::int64_t>& sources,
                        const std::vector<std::int64_t>& destinations) {
  if (sources.size() != destinations.size()) refuse("sources and destinations must be equally many");
  for (const auto* list : {&sources, &destinations})
    for (const std::int64_t block : *list)
      if (block < 0 || block >= cache.blocks) refuse("block " + std::to_string(block) + " is not in this KV cache");
  const std::int64_t lanes = cache.layout.block_lanes;
  backend.run([&](Pool&, const RowKernels&) {
    for (std::size_t i = 0; i < sources.size(); ++i)
      std::memmove(cache.data() + destinations[i] * lanes, cache.data() + sources[i] * lanes, lanes * 4);
  });
}

}  // namespace inflight
