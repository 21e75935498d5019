// Latent attention on the rows' side: compressed vectors and rotated keys into the cache, queries apart; what products by
// head yield back to its token. attention_latent.h reads the cache.
#pragma once
#include "norm_rope.h"

namespace inflight::INFLIGHT_ISA {

// The first 2 · pairs of x turned, for one position.
template <class Value>
INLINE void rotate(const float* x, const float* cos, const float* sin, std::int64_t pairs, Value* to) {
  for (std::int64_t i = 0; i < pairs; ++i) hold(to + i, x[i] * cos[i] - x[i + pairs] * sin[i]);
  for (std::int64_t i = 0; i < pairs; ++i) hold(to + i + pairs, x[i + pairs] * cos[i] + x[i] * sin[i]);
}

// q [tokens][heads][nope + 2 · pairs], kv [tokens][rank + 2 · pairs]; rope.k_norm is the weight of the norm of `rank` numbers.
template <bool int8, class Value>
void rotate_and_write_latent(Pool& pool, const float* q, const float* kv, std::int64_t heads, std::int64_t nope,
                             const KVLayer& layer, const AttentionMetadata& metadata, const Rope& rope, Value* nope_out,
                             Value* q_out) {
  const std::int64_t width = layer.key_dim, rotated = 2 * rope.pairs, rank = width - rotated, block = layer.block_size;
  parallel_rows(pool, metadata.tokens, metadata.tokens * (heads * (nope + rotated) + width) * 8,
                [&](std::int64_t first, std::int64_t last) {
    Value key[most_head_dim];
    std::int64_t chunk = 0;
    for (std::int64_t t = first; t < last; ++t) {
      while (metadata.query_start[chunk + 1] <= t) ++chunk;
      const std::int64_t position = metadata.positions[t];
      const std::int64_t id = metadata.block_tables[chunk * metadata.table_width + position / block];
      const float *cos = rope.cos + position * rope.pairs, *sin = rope.sin + position * rope.pairs;
      const float* row = kv + t * width;
      const float inverse = inverse_rms(row, rank, rope.eps);
      for (std::int64_t i = 0; i < rank; ++i) hold(key + i, row[i] * inverse * rope.k_norm[i]);
      rotate(row + rank, cos, sin, rope.pairs, key + rank);
      write_key<int8>(layer, layer.block(id), position % block, key);
      for (std::int64_t h = t * heads; h < (t + 1) * heads; ++h) {
        const float* x = q + h * (nope + rotated);
        for (std::int64_t i = 0; i < nope; ++i) hold(nope_out + h * nope + i, x[i]);
        rotate(x + nope, cos, sin, rope.pairs, q_out + h * width + rank);
      }
    }
  });
}

// x [count][tokens][width], of heads from `first` on, → the first `width` values of each in out [tokens][heads][stride].
template <class Value>
void place_heads(Pool& pool, const float* x, std::int64_t count, std::int64_t tokens, std::int64_t width,
                 std::int64_t heads, std::int64_t first, std::int64_t stride, Value* out) {
  parallel_rows(pool, count * tokens, count * tokens * width * 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const float* row = x + i * width;
      Value* to = out + (i % tokens * heads + first + i / tokens) * stride;
      for (std::int64_t k = 0; k < width; ++k) hold(to + k, row[k]);
    }
  });
}

}  // namespace inflight::INFLIGHT_ISA
