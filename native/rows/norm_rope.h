// What is done to rows of numbers between products: norms, factors, caps, activation functions; rotation of queries and
// keys, and the writing of keys and values into their blocks.
//
// Knows the cache's metadata (types.h) from the writing side; attention.h reads it.
#pragma once
#include <type_traits>

#include "gemm/quantize.h"
#include "isa/float16.h"
#include "pool/parallel.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

// 1 / sqrt(mean(x²) + eps) in one fixed order of additions.
INLINE float inverse_rms(const float* x, std::int64_t width, float eps) {
  vf sums[4] = {};
  std::int64_t i = 0;
  for (; i + 4 * lanes <= width; i += 4 * lanes)
    for (int j = 0; j < 4; ++j) {
      const vf v = load<vf>(x + i + j * lanes);
      sums[j] = fma(v, v, sums[j]);
    }
  float squares = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < width; ++i) squares += x[i] * x[i];
  return 1.0f / __builtin_sqrtf(squares / static_cast<float>(width) + eps);
}

template <class Value>
INLINE void hold(Value* to, float x) {
  if constexpr (sizeof(Value) == 2) {
    *to = to_bf16(x);
  } else {
    *to = x;
  }
}

// Loops over a row that several kernels share. In a function of its own each is compiled once for a format, and what it
// writes lies beside what it reads.
template <class Value>
__attribute__((noinline)) void hold_row(Value* __restrict to, const float* __restrict x, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) hold(to + i, x[i]);
}

// Normed: times the inverse of a norm and a weight.
template <class Value>
__attribute__((noinline)) void hold_normed(Value* __restrict to, const float* __restrict x, float inverse,
                                           const float* __restrict weight, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) hold(to + i, x[i] * inverse * weight[i]);
}

// The first 2 · pairs turned, for one position.
template <class Value>
__attribute__((noinline)) void hold_turned(Value* __restrict to, const float* __restrict x, const float* __restrict cos,
                                           const float* __restrict sin, std::int64_t pairs) {
  for (std::int64_t i = 0; i < pairs; ++i) hold(to + i, x[i] * cos[i] - x[i + pairs] * sin[i]);
  for (std::int64_t i = 0; i < pairs; ++i) hold(to + i + pairs, x[i + pairs] * cos[i] + x[i] * sin[i]);
}

template <class Value>
void normalise(Pool& pool, const float* x, const float* weight, float eps, std::int64_t tokens, std::int64_t width,
               Value* out) {
  parallel_rows(pool, tokens, tokens * width * 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      const float* row = x + t * width;
      hold_normed(out + t * width, row, inverse_rms(row, width, eps), weight, width);
    }
  });
}

// What a layer norm takes off a row, and multiplies it by. The mean of large numbers is off by a few of their last
// bits: what is left of it among the centred ones is taken off, too.
struct Centre {
  float mean, rest, inverse;
  INLINE vf of(vf x) const { return (x - mean - rest) * inverse; }
  INLINE float of(float x) const { return (x - mean - rest) * inverse; }
};

INLINE Centre centre_of(const float* row, std::int64_t width, float eps) {
  const float count = static_cast<float>(width);
  vf sums[2] = {}, squares{};
  float total = 0, rest = 0, square = 0;
  std::int64_t i = 0;
  for (; i + 2 * lanes <= width; i += 2 * lanes)
    sums[0] += load<vf>(row + i), sums[1] += load<vf>(row + i + lanes);
  const std::int64_t whole = i;
  for (; i < width; ++i) total += row[i];
  const float mean = (sum(sums[0] + sums[1]) + total) / count;
  vf left{};
  for (i = 0; i < whole; i += lanes) {
    const vf v = load<vf>(row + i) - mean;
    left += v, squares = fma(v, v, squares);
  }
  for (; i < width; ++i) {
    const float v = row[i] - mean;
    rest += v, square += v * v;
  }
  rest = (sum(left) + rest) / count;
  const float variance = (sum(squares) + square) / count - rest * rest;
  return {mean, rest, 1.0f / __builtin_sqrtf((variance > 0 || variance != variance ? variance : 0.0f) + eps)};
}

// (x − mean) / sqrt(variance + eps) · weight + bias. sum: x becomes it, too.
template <bool sum, class Value>
void normalise_layer(Pool& pool, std::conditional_t<sum, float*, const float*> x, const float* weight,
                     const float* bias, float eps, std::int64_t tokens, std::int64_t width, Value* out) {
  parallel_rows(pool, tokens, tokens * width * 8, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      auto* row = x + t * width;
      Value* to = out + t * width;
      const Centre centre = centre_of(row, width, eps);
      std::int64_t i = 0;
      for (; i + lanes <= width; i += lanes) {
        vf value = centre.of(load<vf>(row + i)) * load<vf>(weight + i);
        if (bias) value += load<vf>(bias + i);
        if constexpr (sum) store(row + i, value);
        if constexpr (sizeof(Value) == 2) {
          store_bf16(to + i, value);
        } else {
          store(to + i, value);
        }
      }
      for (; i < width; ++i) {
        const float value = centre.of(row[i]) * weight[i] + (bias ? bias[i] : 0.0f);
        if constexpr (sum) row[i] = value;
        hold(to + i, value);
      }
    }
  });
}

// out[i] = the mean of rows [starts[i], ends[i]) of x, added up in their order.
inline void mean_rows(Pool& pool, const float* x, const std::int32_t* starts, const std::int32_t* ends,
                      std::int64_t count, std::int64_t width, float* out) {
  parallel_rows(pool, count, count * width * 64, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t s = first; s < last; ++s) {
      const float inverse = 1.0f / static_cast<float>(ends[s] - starts[s]);
      std::int64_t i = 0;
      for (; i + lanes <= width; i += lanes) {
        vf total{};
        for (std::int64_t t = starts[s]; t < ends[s]; ++t) total += load<vf>(x + t * width + i);
        store(out + s * width + i, total * inverse);
      }
      for (; i < width; ++i) {
        float total = 0;
        for (std::int64_t t = starts[s]; t < ends[s]; ++t) total += x[t * width + i];
        out[s * width + i] = total * inverse;
      }
    }
  });
}

// out += factor · x, or factor · the RMS norm of x.
inline void add_rows(Pool& pool, const float* x, const float* weight, float eps, float factor, std::int64_t tokens,
                     std::int64_t width, float* out) {
  parallel_rows(pool, tokens, tokens * width * 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      const float* row = x + t * width;
      float* to = out + t * width;
      if (weight == nullptr) {
        for (std::int64_t i = 0; i < width; ++i) to[i] += factor * row[i];
      } else {
        const float inverse = inverse_rms(row, width, eps);
        for (std::int64_t i = 0; i < width; ++i) to[i] += factor * (row[i] * inverse * weight[i]);
      }
    }
  });
}

// y = of(x), number by number, by vectors. A number's bits do not depend on where it stands.
template <class Of>
INLINE void map_run(const float* x, std::int64_t count, float* y, Of&& of) {
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) store(y + i, of(load<vf>(x + i)));
  for (; i < count; ++i) y[i] = of(all(x[i]))[0];
}

// of(x + i, count, y), then to(i, count, y), for runs of the numbers of some rows: from the i-th on so many.
template <class Of, class To>
void map_rows(Pool& pool, const float* x, std::int64_t tokens, std::int64_t width, Of&& of, To&& to) {
  parallel_rows(pool, tokens, tokens * width * 8, [&](std::int64_t first, std::int64_t last) {
    constexpr std::int64_t run = 512;
    float y[run];
    for (std::int64_t i = first * width, end = last * width; i < end; i += run) {
      const std::int64_t count = end - i < run ? end - i : run;
      of(x + i, count, y);
      to(i, count, y);
    }
  });
}

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

}  // namespace inflight::INFLIGHT_ISA
