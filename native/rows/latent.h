// Latent attention on the rows' side: compressed vectors and rotated keys into the cache; queries, separately; what
// products by head yield back to its token. attention/latent.h reads the cache.
#pragma once
#include "rows/operation.h"

#ifdef INFLIGHT_ISA
#include "rows/rope.h"

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

inline void rope_and_write_latent(Pool& pool, Format format, const float* q, const float* kv, std::int64_t heads,
                                  std::int64_t nope, const KVLayer& layer, const AttentionMetadata& metadata,
                                  const Rope& rope, void* nope_out, void* q_out) {
  with(format, [&](auto value) {
    using Value = decltype(value);
    auto *first = static_cast<Value*>(nope_out), *rest = static_cast<Value*>(q_out);
    if (layer.bytes) {
      rotate_and_write_latent<true>(pool, q, kv, heads, nope, layer, metadata, rope, first, rest);
    } else {
      rotate_and_write_latent<false>(pool, q, kv, heads, nope, layer, metadata, rope, first, rest);
    }
  });
}

inline void place_heads(Pool& pool, Format format, const float* x, std::int64_t count, std::int64_t tokens,
                        std::int64_t width, std::int64_t heads, std::int64_t first, std::int64_t stride, void* out) {
  with(format, [&](auto value) {
    place_heads(pool, x, count, tokens, width, heads, first, stride, static_cast<decltype(value)*>(out));
  });
}

}  // namespace inflight::INFLIGHT_ISA

#else

namespace inflight {

// One that keeps no values beside its keys.
inline const KVLayer& without_values(const PreparedPass& pass, std::int64_t layer) {
  const KVLayer& found = pass.layer_at(layer);
  if (!found.values_in_keys() || found.kv_heads != 1)
    refuse("layer " + std::to_string(layer) + " keeps values beside its keys; latent attention has none");
  return found;
}

inline void rope_and_write_latent(PreparedPass& pass, const Activation& q, const Activation& kv, std::int64_t layer,
                                  const RopeTable& rope, const Vector& kv_norm, float eps, Activation& nope_out,
                                  Activation& q_out) {
  const KVLayer& kept = without_values(pass, layer);
  const std::int64_t tokens = pass.tokens(), width = kept.key_dim, pairs = rope.cos.size(1);
  const std::int64_t heads = q_out.columns / width, nope = nope_out.columns / (heads > 0 ? heads : 1);
  expect(kv, "kv", Kind::f32, width);
  if (kv_norm.array.size(0) + 2 * pairs != width) refuse("kv_norm and the rope table must make up a key together");
  if (heads < 1 || q_out.columns != heads * width || nope_out.columns != heads * nope)
    refuse("q_out and nope_out must have numbers for whole heads");
  expect(q, "q", Kind::f32, heads * (nope + 2 * pairs));
  if (q.rows != tokens || kv.rows != tokens) refuse("q and kv must have a row for each token");
  if (pass.past_position() > rope.cos.size(0)) refuse("the rope table is too short for these positions");
  begin(nope_out, pass.act(), nope_out.columns, tokens);
  begin(q_out, pass.act(), q_out.columns, tokens);
  const Rope given{rope.cos.data<float>(), rope.sin.data<float>(), pairs, nullptr, nullptr, numbers(&kv_norm),
                   nullptr, false, false, false, eps};
  pass.run([&](Pool& pool, const RowKernels& kernels) {
    kernels.rope_and_write_latent(pool, pass.format(), q.array.data<float>(), kv.array.data<float>(), heads, nope, kept,
                                  pass.metadata_of(layer), given, nope_out.array.data(), q_out.array.data());
  });
}

}  // namespace inflight

#endif
