// Rotation of queries and keys, and the writing of keys and values into their blocks.
//
// The kernel writes what attention/ reads (types.h has the layout).
#pragma once
#include "rows/operation.h"

#ifdef INFLIGHT_ISA
#include "gemm/quantize.h"

namespace inflight::INFLIGHT_ISA {

// One token's keys (of one head) into its slot of a block.
template <bool int8, class Value>
__attribute__((noinline)) void write_key(const KVLayer& layer, std::uint32_t* head, std::int64_t slot,
                                         const Value* key) {
  constexpr std::int64_t per_step = int8 ? 4 : 4 / sizeof(Value);
  const std::int64_t width = layer.key_dim, block = layer.block_size;
  std::uint32_t* to = head + slot;
  if constexpr (!int8) {
    for (std::int64_t s = 0; s < width / per_step; ++s) std::memcpy(to + s * block, key + s * per_step, 4);
  } else {
    std::int8_t bytes[max_head_dim + 2];
    const Scale scale = scale_of(largest_bits(key, width));
    quantize(key, width, scale, bytes);
    bytes[width] = bytes[width + 1] = 0;  // half a step, if the even width ends in one
    for (std::int64_t s = 0; s < (width + 3) / 4; ++s) to[s * block] = load<std::uint32_t>(bytes + 4 * s) ^ 0x80808080u;
    store(head + layer.scales_at + slot, scale.scale);
  }
}

// The same for its values.
template <bool int8, class Value>
__attribute__((noinline)) void write_values(const KVLayer& layer, std::uint32_t* head, std::int64_t slot,
                                            const float* values) {
  constexpr std::int64_t per_step = int8 ? 4 : 4 / sizeof(Value);
  const std::int64_t width = layer.value_dim;
  std::uint32_t* to = head + layer.key_lanes + slot / per_step * layer.padded_dim;
  if constexpr (!int8) {
    Value* at = reinterpret_cast<Value*>(to) + slot % per_step;
    for (std::int64_t i = 0; i < width; ++i) hold(at + i * per_step, values[i]);
  } else {
    Value held[max_head_dim];
    std::int8_t bytes[max_head_dim];
    hold_row(held, values, width);
    const Scale scale = scale_of(largest_bits(held, width));
    quantize(held, width, scale, bytes);
    auto* at = reinterpret_cast<std::int8_t*>(to) + slot % per_step;
    for (std::int64_t i = 0; i < width; ++i) at[i * per_step] = bytes[i];
    store(head + layer.scales_at + layer.block_size + slot, scale.scale);
  }
}

template <bool int8, class Value>
void rotate_and_write(Pool& pool, const Projection& qkv, const KVLayer& layer, const AttentionMetadata& metadata,
                      const Rope& rope, Value* q_out) {
  const std::int64_t width = layer.key_dim, half = rope.pairs, block = layer.block_size, heads = qkv.heads;
  const std::int64_t kv_heads = qkv.keys ? layer.kv_heads : 0;  // that are written
  const std::int64_t row_width = (heads + (qkv.values ? 2 : 1) * kv_heads) * width;
  parallel_rows(pool, metadata.tokens, metadata.tokens * row_width * 8, [&](std::int64_t first, std::int64_t last) {
    float normed[max_head_dim], turned[max_head_dim], mixed[max_head_dim] = {};
    Value rotated[max_head_dim];
    std::int64_t chunk = 0;
    for (std::int64_t t = first; t < last; ++t) {
      while (metadata.query_start[chunk + 1] <= t) ++chunk;
      const std::int64_t position = metadata.positions[t], slot = position % block;
      const std::int64_t id = metadata.block_tables[chunk * metadata.table_width + position / block];
      std::uint32_t* heads_of_block = layer.block(id);
      const float *cos = rope.cos + position * half, *sin = rope.sin + position * half;
      const float* row = qkv.rows + t * row_width;
      const float q_inverse = rope.q_norm_all ? inverse_rms(row, heads * width, rope.eps) : 0.0f;
      const float k_inverse = rope.k_norm_all ? inverse_rms(row + heads * width, kv_heads * width, rope.eps) : 0.0f;
      for (std::int64_t h = 0; h < heads + kv_heads; ++h) {
        const bool is_query = h < heads, over_all = is_query ? rope.q_norm_all : rope.k_norm_all;
        const float* x = row + h * width;
        const float* weight = is_query ? rope.q_norm : rope.k_norm;
        if (weight && !rope.norms_last) {
          if (over_all) weight += (is_query ? h : h - heads) * width;
          const float inverse = over_all ? (is_query ? q_inverse : k_inverse) : inverse_rms(x, width, rope.eps);
          hold_normed(normed, x, inverse, weight, width);
          x = normed;
        }
        if (is_query && rope.q_scale) {
          for (std::int64_t i = 0; i < width; ++i) normed[i] = x[i] * rope.q_scale[position];
          x = normed;
        }
        Value* to = is_query ? q_out + (t * heads + h) * width : rotated;
        const auto turn_into = [&](auto* into) {
          if (weight && rope.norms_last) {
            hold_turned(turned, x, cos, sin, half);
            hold_row(turned + 2 * half, x + 2 * half, width - 2 * half);
            hold_normed(into, turned, inverse_rms(turned, width, rope.eps), weight, width);
          } else {
            hold_turned(into, x, cos, sin, half);
            hold_row(into + 2 * half, x + 2 * half, width - 2 * half);
          }
        };
        if constexpr (int8) {
          turn_into(mixed);
          mix_channels(mixed, width, is_query);
          hold_row(to, mixed, width);
        } else {
          turn_into(to);
        }
        if (!is_query) write_key<int8>(layer, heads_of_block + (h - heads) * layer.head_lanes, slot, rotated);
      }
      for (std::int64_t g = 0; g < kv_heads; ++g) {
        const float* x = row + (heads + (qkv.values ? kv_heads : 0) + g) * width;
        if (rope.v_norm) {
          hold_normed(normed, x, inverse_rms(x, width, rope.eps), rope.v_norm, width);
          x = normed;
        }
        write_values<int8, Value>(layer, heads_of_block + g * layer.head_lanes, slot, x);
      }
    }
  });
}

inline void rope_and_write(Pool& pool, Format format, const Projection& qkv, const KVLayer& layer,
                           const AttentionMetadata& metadata, const Rope& rope, void* q_out) {
  with(format, [&](auto value) {
    auto* to = static_cast<decltype(value)*>(q_out);
    if (layer.bytes) {
      rotate_and_write<true>(pool, qkv, layer, metadata, rope, to);
    } else {
      rotate_and_write<false>(pool, qkv, layer, metadata, rope, to);
    }
  });
}

}  // namespace inflight::INFLIGHT_ISA

#else

namespace inflight {

inline void rope_and_write_kv(PreparedPass& pass, const Activation& qkv, std::int64_t layer, const RopeTable* rope,
                              const Vector* q_norm, const Vector* k_norm, float eps, Activation& q_out, bool norms_last,
                              const Vector* v_norm) {
  const KVLayer& kept = with_values(pass, layer);
  const std::int64_t tokens = pass.tokens(), dim = kept.key_dim;
  const std::int64_t heads = q_out.columns / dim, others = qkv.columns / dim - heads;
  if (qkv.kind != Kind::f32 || qkv.columns % dim != 0 || heads < 1 ||
      (others != 0 && others != kept.kv_heads && others != 2 * kept.kv_heads))
    refuse("qkv must hold whole heads of float32: queries, then keys if any, then values if any");
  if (qkv.rows != tokens) refuse("qkv must have a row for each token");
  const std::int64_t pairs = rope ? rope->cos.size(1) : 0;
  if (2 * pairs > dim) refuse("the rope table is for another head dimension");
  if (rope && pass.past_position() > rope->cos.size(0)) refuse("the rope table is too short for these positions");
  const auto over_all = [&](const Vector* norm, std::int64_t count) {
    if (norm == nullptr || norm->array.size(0) == dim) return false;
    if (norm->array.size(0) != count * dim)
      refuse("q_norm and k_norm must have a number for each of a head's, or of all heads'");
    return true;
  };
  const bool q_all = over_all(q_norm, heads), k_all = over_all(k_norm, kept.kv_heads);
  if (norms_last && (q_all || k_all)) refuse("norms over all heads come before the rotation");
  begin(q_out, pass.act(), heads * dim, tokens);
  if (v_norm != nullptr && v_norm->array.size(0) != dim) refuse("v_norm must have a number for each of a head's");
  const Projection projection{qkv.array.data<float>(), heads, others > 0, others > kept.kv_heads};
  const Rope given{rope ? rope->cos.data<float>() : nullptr,
                   rope ? rope->sin.data<float>() : nullptr,
                   pairs,
                   rope && rope->q_scale ? rope->q_scale->data<float>() : nullptr,
                   numbers(q_norm),
                   numbers(k_norm),
                   numbers(v_norm),
                   q_all,
                   k_all,
                   norms_last,
                   eps};
  pass.run([&](Pool& pool, const RowKernels& kernels) {
    kernels.rope_and_write(pool, pass.format(), projection, kept, pass.metadata_of(layer), given,
                           q_out.array.data());
  });
}

}  // namespace inflight

#endif
