// Where the tokens of a pass lie: positions, chunks and block tables, checked against the KV cache: which positions a
// pass writes, and how far back a window lets it see.
#pragma once
#include <nanobind/nanobind.h>

#include <algorithm>
#include <string>

#include "attention/kv_cache.h"
#include "pass/array.h"
#include "types.h"

namespace inflight {

// Where the tokens of a pass lie.
struct MetadataArrays {
  Array positions, query_start, context_len, block_tables;
  AttentionMetadata all;  // with the block tables of the first group
  std::int64_t groups;

  MetadataArrays(nb::handle positions_, nb::handle query_start_, nb::handle context_len_, nb::handle block_tables_)
      : positions(positions_, "positions", Kind::i32, {any}),
        query_start(query_start_, "query_start", Kind::i32, {any}),
        context_len(context_len_, "context_len", Kind::i32, {chunks()}),
        block_tables(block_tables_, "block_tables", Kind::i32, {any, chunks(), any}), groups(block_tables.size(0)) {
    all = {positions.data<std::int32_t>(), query_start.data<std::int32_t>(), context_len.data<std::int32_t>(),
           block_tables.data<std::int32_t>(), positions.size(0), chunks(), block_tables.size(2)};
    if (all.query_start[0] != 0 || all.query_start[all.chunks] != all.tokens)
      refuse("query_start must begin with 0 and end with the number of tokens");
    for (std::int64_t c = 0; c < all.chunks; ++c) {
      const std::int64_t first = all.query_start[c], last = all.query_start[c + 1];
      if (first > last || last > all.tokens || all.context_len[c] < 0)
        refuse("query_start must ascend, and context_len not be negative");
      for (std::int64_t t = first; t < last; ++t)
        if (all.positions[t] != all.context_len[c] + t - first)
          refuse("positions of a chunk must rise by one from its start");
    }
  }

  std::int64_t chunks() const {
    if (query_start.size(0) < 1) refuse("query_start must have one element more than there are chunks");
    return query_start.size(0) - 1;
  }

  // With the block tables of a group.
  AttentionMetadata of(std::int64_t group) const {
    AttentionMetadata found = all;
    found.block_tables += group * all.chunks * all.table_width;
    return found;
  }

  std::int64_t end(std::int64_t chunk) const {  // past its last position
    return all.context_len[chunk] + all.query_start[chunk + 1] - all.query_start[chunk];
  }

  // The blocks of a group that hold positions [first, end) of a chunk must exist.
  void check_blocks(const KVCacheMemory& cache, std::int64_t group, std::int64_t chunk, std::int64_t first) const {
    if (all.query_start[chunk] == all.query_start[chunk + 1]) return;
    const std::int64_t last = (end(chunk) - 1) / cache.block_size;
    if (last >= all.table_width)
      refuse("the block table of chunk " + std::to_string(chunk) + " is too short for its positions");
    const std::int32_t* table = of(group).block_tables + chunk * all.table_width;
    for (std::int64_t b = first / cache.block_size; b <= last; ++b) {
      const std::int64_t id = table[b];
      if (id < 0 || id >= cache.blocks)
        refuse("the block table of chunk " + std::to_string(chunk) + " names block " + std::to_string(id) +
               ", which is not in the KV cache");
    }
  }

  // As far as a window lets queries see, from the beginning of a tile; those that are written, besides.
  void check_blocks(const KVCacheMemory& cache, std::int64_t group, std::int64_t window) const {
    for (std::int64_t c = 0; c < all.chunks; ++c) {
      const std::int64_t seen = window > 0 ? std::max<std::int64_t>(0, all.context_len[c] + 1 - window) : 0;
      check_blocks(cache, group, c, seen / tile_positions * tile_positions);
    }
  }
};

}  // namespace inflight
