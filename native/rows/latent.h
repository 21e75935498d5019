// Latent attention on the rows' side: compressed vectors and rotated keys into the cache; queries, separately; what
// products by head yield back to its token. attention/latent.h reads the cache.
#pragma once
#include "rows/norm_rope.h"

namespace inflight::INFLIGHT_ISA {

// q [tokens][heads][nope + 2 · pairs], kv [tokens][rank + 2 · pairs]; rope.k_norm is the weight of the norm of `rank`
// numbers.
template <bool int8, class Value>
void rotate_and_write_latent(Pool& pool, const float* q, const float* kv, std::int64_t heads, std::int64_t nope,
                             const KVLayer& layer, const AttentionMetadata& metadata, const Rope& rope, Value* nope_out,
                             Value* q_out) {
  const std::int64_t width = layer.key_dim, rotated = 2 * rope.pairs, rank = width - rotated, block = layer.block_size;
  parallel_rows(pool, metadata.tokens, metadata.tokens * (heads * (nope + rotated) + width) * 8,
                [&](std::int64_t first, std::int64_t last) {
    Value key[max_head_dim];
    std::int64_t chunk = 0;
    for (std::int64_t t = first; t < last; ++t) {
      while (metadata.query_start[chunk + 1] <= t) ++chunk;
      const std::int64_t position = metadata.positions[t];
      const std::int64_t id = metadata.block_tables[chunk * metadata.table_width + position / block];
      const float *cos = rope.cos + position * rope.pairs, *sin = rope.sin + position * rope.pairs;
      const float* row = kv + t * width;
      hold_normed(key, row, inverse_rms(row, rank, rope.eps), rope.k_norm, rank);
      hold_turned(key + rank, row + rank, cos, sin, rope.pairs);
      write_key<int8>(layer, layer.block(id), position % block, key);
      for (std::int64_t h = t * heads; h < (t + 1) * heads; ++h) {
        const float* x = q + h * (nope + rotated);
        hold_row(nope_out + h * nope, x, nope);
        hold_turned(q_out + h * width + rank, x + nope, cos, sin, rope.pairs);
      }
    }
  });
}

// x [count][tokens][width], of heads from `first` on, → the first `width` values of each in out
// [tokens][heads][stride].
template <class Value>
void place_heads(Pool& pool, const float* x, std::int64_t count, std::int64_t tokens, std::int64_t width,
                 std::int64_t heads, std::int64_t first, std::int64_t stride, Value* out) {
  parallel_rows(pool, count * tokens, count * tokens * width * 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      hold_row(out + (i % tokens * heads + first + i / tokens) * stride, x + i * width, width);
    }
  });
}

}  // namespace inflight::INFLIGHT_ISA
