// Kernels of recurrent layers over a sequence's state: short convolutions over the last few inputs, and the gated delta
// rule over a matrix for each head.
//
// A chunk's tokens go one after the other, each through the same operations in the same order, so that the bits of a
// state do not depend on how the sequence was cut. Work is divided over chunks and over channels or heads. Where a
// chunk begins at position 0 the state is zero, whatever lies there.
#pragma once
#include "isa/elementary.h"
#include "isa/float16.h"
#include "pool/parallel.h"
#include "rows/row_loops.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

constexpr std::int64_t block_channels = 256;  // of a convolution that are taken through a chunk at once
constexpr std::int64_t block_tokens = 32;     // of a chunk that are made ready at once for the delta rule

template <class Value>
INLINE Value held(float x) {
  Value to;
  hold(&to, x);
  return to;
}

// A layer's part of a live state, and of a snapshot.
INLINE char* live_state(const StateView& view, std::int64_t chunk) {
  return view.cache.data + view.metadata.rows[chunk] * view.cache.bytes;
}
INLINE char* snapshot_state(const StateView& view, std::int64_t entry) {
  return view.cache.data + (view.cache.rows + view.metadata.slots[entry]) * view.cache.bytes;
}

// The inputs of some channels that came last, as `kernel` rows that are written in turn.
struct Ring {
  float rows[max_kernel][block_channels];
  std::int64_t kernel, next = 0;  // next: the row that is written next, the oldest

  float* oldest(std::int64_t back) { return rows[(next + back) % kernel]; }

  template <class Value>
  void load(const Value* from, std::int64_t channels, std::int64_t count, bool zero) {
    for (std::int64_t j = 0; j + 1 < kernel; ++j)
      for (std::int64_t c = 0; c < count; ++c) rows[j][c] = zero ? 0.0f : read(from[j * channels + c]);
    next = kernel - 1;
  }

  template <class Value>
  void save(Value* to, std::int64_t channels, std::int64_t count) {
    for (std::int64_t j = 0; j + 1 < kernel; ++j) {
      const float* row = oldest(j + 1);
      for (std::int64_t c = 0; c < count; ++c) to[j * channels + c] = held<Value>(row[c]);
    }
  }
};

// Σ weight[j] · (input j) of a channel, oldest first, behind the bias.
template <class Value, class Input, class Output>
void convolve_chunks(Pool& pool, const StateView& view, const AttentionMetadata& metadata, const Convolution& given,
                     Input&& input, Output&& output) {
  const std::int64_t channels = given.channels, kernel = given.kernel;
  const std::int64_t pieces = (channels + block_channels - 1) / block_channels;
  const bool alone = metadata.tokens * channels * kernel < (1 << 16);
  parallel_for(pool, metadata.chunks * pieces, [&](std::int64_t task, int) {
    const std::int64_t chunk = task / pieces, first = task % pieces * block_channels;
    const std::int64_t count = channels - first < block_channels ? channels - first : block_channels;
    const std::int64_t begin = metadata.query_start[chunk], end = metadata.query_start[chunk + 1];
    if (begin == end) return;
    const auto at = [&](char* state) { return reinterpret_cast<Value*>(state + view.layer.inputs_at) + first; };
    Value* live = at(live_state(view, chunk));
    std::int64_t entry = view.metadata.snapshot_start[chunk];
    const std::int64_t entries = view.metadata.snapshot_start[chunk + 1];
    Ring ring;
    ring.kernel = kernel;
    ring.load(live, channels, count, metadata.context_len[chunk] == 0);
    float sums[block_channels];
    for (std::int64_t t = begin; t < end; ++t) {
      float* newest = ring.rows[ring.next];
      input(t, first, count, newest);
      ring.next = (ring.next + 1) % kernel;
      for (std::int64_t c = 0; c < count; ++c) sums[c] = given.bias ? given.bias[first + c] : 0.0f;
      for (std::int64_t j = 0; j < kernel; ++j) {
        const float *row = ring.oldest(j), *weight = given.weight + j * channels + first;
        for (std::int64_t c = 0; c < count; ++c) sums[c] += weight[c] * row[c];
      }
      output(t, first, count, sums);
      if (entry < entries && view.metadata.positions[entry] == metadata.positions[t] + 1)
        ring.save(at(snapshot_state(view, entry++)), channels, count);
    }
    ring.save(live, channels, count);
  }, alone);
}

// of(i) of numbers [0, count) by vectors; bits do not depend on where a number stands.
template <class Of>
INLINE void by_vectors(const float* from, std::int64_t count, float* to, Of&& of) {
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) store(to + i, of(load<vf>(from + i)));
  if (i == count) return;
  float rest[lanes] = {};
  std::memcpy(rest, from + i, (count - i) * sizeof(float));
  store(rest, of(load<vf>(rest)));
  std::memcpy(to + i, rest, (count - i) * sizeof(float));
}

// Of the first channels of rows of x. out: [tokens][channels].
template <class Value>
void convolve_silu(Pool& pool, const StateView& view, const AttentionMetadata& metadata, const Convolution& given,
                   const float* x, std::int64_t width, float* out) {
  const auto input = [=](std::int64_t t, std::int64_t first, std::int64_t count, float* to) {
    for (std::int64_t c = 0; c < count; ++c) to[c] = read(held<Value>(x[t * width + first + c]));
  };
  const auto output = [&](std::int64_t t, std::int64_t first, std::int64_t count, const float* sums) {
    by_vectors(sums, count, out + t * given.channels + first, [](vf v) { return silu(v); });
  };
  convolve_chunks<Value>(pool, view, metadata, given, input, output);
}

// x: [tokens][3 · channels], a gate of the inputs, one of what comes out, and the inputs.
template <class Value>
void convolve_gates(Pool& pool, const StateView& view, const AttentionMetadata& metadata, const Convolution& given,
                    const float* x, Value* out) {
  const std::int64_t channels = given.channels;
  const auto input = [=](std::int64_t t, std::int64_t first, std::int64_t count, float* to) {
    const float *gate = x + t * 3 * channels + first, *from = gate + 2 * channels;
    for (std::int64_t c = 0; c < count; ++c) to[c] = read(held<Value>(gate[c] * from[c]));
  };
  const auto output = [=](std::int64_t t, std::int64_t first, std::int64_t count, const float* sums) {
    const float* gate = x + t * 3 * channels + channels + first;
    for (std::int64_t c = 0; c < count; ++c) hold(out + t * channels + first + c, gate[c] * sums[c]);
  };
  convolve_chunks<Value>(pool, view, metadata, given, input, output);
}

// log(1 + eˣ); x where that is the same in float32.
INLINE float softplus(float x) { return x > 20.0f ? x : __builtin_log1pf(__builtin_expf(x)); }

INLINE float inverse_length(const float* x, std::int64_t width) {
  vf sums = {};
  std::int64_t i = 0;
  for (; i + lanes <= width; i += lanes) sums = fma(load<vf>(x + i), load<vf>(x + i), sums);
  float squares = sum(sums);
  for (; i < width; ++i) squares += x[i] * x[i];
  return 1.0f / __builtin_sqrtf(squares + 1e-6f);
}

// One token through `columns` vectors of a head's matrix: S ← decay · S + k (v − decay · kS) · beta, out = qS. The sums
// over keys are four, by the key's number, and then one. Matrices are in panels: `panel_stride` floats from one to the
// next.
template <int columns>
INLINE void delta_step(float* matrix, std::int64_t panel_stride, std::int64_t keys, const float* q, const float* k,
                       const float* v, float decay_, float beta, float* out) {
  constexpr int in_panel = vectors;  // vectors side by side in a panel
  const vf decay = all(decay_);
  const auto at = [=](std::int64_t key, int c) {
    return matrix + c / in_panel * panel_stride + key * panel + c % in_panel * lanes;
  };
  vf sums[4][columns] = {};
  for (std::int64_t key = 0; key < keys; key += 4)
    for (int i = 0; i < 4; ++i)
      for (int c = 0; c < columns; ++c) sums[i][c] = fma(load<vf>(at(key + i, c)), all(k[key + i]), sums[i][c]);
  vf delta[columns];
  for (int c = 0; c < columns; ++c) {
    const vf found = (sums[0][c] + sums[1][c]) + (sums[2][c] + sums[3][c]);
    delta[c] = (load<vf>(v + c * lanes) - decay * found) * beta;
  }
  for (auto& row : sums)
    for (vf& one : row) one = vf{};
  for (std::int64_t key = 0; key < keys; key += 4)
    for (int i = 0; i < 4; ++i) {
      // Read before one of them is written: panels lie at strides of whole pages, where reads wait for writes.
      vf state[columns];
      for (int c = 0; c < columns; ++c) state[c] = load<vf>(at(key + i, c));
      for (int c = 0; c < columns; ++c) {
        state[c] = fma(delta[c], all(k[key + i]), decay * state[c]);
        sums[i][c] = fma(state[c], all(q[key + i]), sums[i][c]);
      }
      for (int c = 0; c < columns; ++c) store(at(key + i, c), state[c]);
    }
  for (int c = 0; c < columns; ++c) store(out + c * lanes, (sums[0][c] + sums[1][c]) + (sums[2][c] + sums[3][c]));
}

// Tokens of a head, made ready: padded with zeros to whole steps and panels.
struct DeltaBlock {
  float *q, *k;            // [block_tokens][keys]
  float *v, *out;          // [block_tokens][values]
  float decay[block_tokens], beta[block_tokens];
};

// Numbers that a worker needs for one.
inline std::int64_t delta_numbers(const LayerState& layer) {
  return block_tokens * 2 * (layer.padded_keys + layer.padded_values);
}

INLINE void prepare_block(const LayerState& layer, const DeltaRule& rule, std::int64_t head, const float* qkv,
                          const float* gates, std::int64_t first, std::int64_t count, DeltaBlock& block) {
  const std::int64_t heads = layer.heads, key_dim = layer.key_dim;
  const std::int64_t keys = layer.padded_keys, values = layer.padded_values;
  const std::int64_t key_head = head / (heads / rule.key_heads), all_keys = rule.key_heads * key_dim;
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(key_dim));
  for (std::int64_t i = 0; i < count; ++i) {
    const float *row = qkv + (first + i) * layer.channels, *gate = gates + (first + i) * 2 * heads;
    const float *q = row + key_head * key_dim, *k = q + all_keys, *v = row + 2 * all_keys + head * layer.value_dim;
    const float of_q = inverse_length(q, key_dim) * scale, of_k = inverse_length(k, key_dim);
    for (std::int64_t n = 0; n < keys; ++n) {
      block.q[i * keys + n] = n < key_dim ? q[n] * of_q : 0.0f;
      block.k[i * keys + n] = n < key_dim ? k[n] * of_k : 0.0f;
    }
    for (std::int64_t n = 0; n < values; ++n) block.v[i * values + n] = n < layer.value_dim ? v[n] : 0.0f;
    block.beta[i] = 1.0f / (1.0f + __builtin_expf(-gate[head]));
    block.decay[i] = __builtin_expf(rule.decay[head] * softplus(gate[heads + head] + rule.step_bias[head]));
  }
}

// A few columns at a time, so that their part of the matrix stays in the nearest cache while the tokens pass.
INLINE void pass_block(const LayerState& layer, float* matrix, std::int64_t count, DeltaBlock& block) {
  constexpr int most = 2;
  const std::int64_t keys = layer.padded_keys, values = layer.padded_values, panel_stride = keys * panel;
  const auto through = [&](std::int64_t column, auto columns) {
    float* from = matrix + column / panel * panel_stride + column % panel;
    for (std::int64_t i = 0; i < count; ++i)
      delta_step<decltype(columns)::value>(from, panel_stride, keys, block.q + i * keys, block.k + i * keys,
                                           block.v + i * values + column, block.decay[i], block.beta[i],
                                           block.out + i * values + column);
  };
  std::int64_t column = 0;
  for (; column + most * lanes <= values; column += most * lanes) through(column, std::integral_constant<int, most>{});
  for (; column < values; column += lanes) through(column, std::integral_constant<int, 1>{});
}

// out[t] = norm(x) · weight · silu(z) of each head.
template <class Value>
INLINE void norm_block(const LayerState& layer, const DeltaRule& rule, std::int64_t head, const float* z,
                       std::int64_t width, std::int64_t first, std::int64_t count, const DeltaBlock& block,
                       Value* out) {
  const std::int64_t dim = layer.value_dim;
  for (std::int64_t i = 0; i < count; ++i) {
    const float *x = block.out + i * layer.padded_values, *gate = z + (first + i) * width + head * dim;
    Value* to = out + ((first + i) * layer.heads + head) * dim;
    const float inverse = inverse_rms(x, dim, rule.eps);
    float* gated = block.v + i * layer.padded_values;  // which has been read
    by_vectors(gate, dim, gated, [](vf v) { return silu(v); });
    for (std::int64_t n = 0; n < dim; ++n) hold(to + n, x[n] * inverse * rule.norm[n] * gated[n]);
  }
}

// qkv: [tokens][channels]. z: rows at a stride of `width`. gates: [tokens][2 · heads], of beta, then of the decay.
template <class Value>
void run_delta_rule(Pool& pool, const StateView& view, const AttentionMetadata& metadata, const DeltaRule& rule,
                    const float* qkv, const float* z, std::int64_t width, const float* gates, Value* out) {
  const LayerState& layer = view.layer;
  const std::int64_t keys = layer.padded_keys, values = layer.padded_values, heads = layer.heads;
  pool.reserve(delta_numbers(layer) * sizeof(float));
  parallel_for(pool, metadata.chunks * heads, [&](std::int64_t task, int worker) {
    const std::int64_t chunk = task / heads, head = task % heads;
    const std::int64_t begin = metadata.query_start[chunk], end = metadata.query_start[chunk + 1];
    if (begin == end) return;
    const auto at = [&](char* state) {
      return reinterpret_cast<float*>(state + view.layer.matrices_at) + head * keys * values;
    };
    float* matrix = at(live_state(view, chunk));
    const std::size_t bytes = keys * values * sizeof(float);
    if (metadata.context_len[chunk] == 0) std::memset(matrix, 0, bytes);
    DeltaBlock block;
    block.q = static_cast<float*>(pool.own(worker)), block.k = block.q + block_tokens * keys;
    block.v = block.k + block_tokens * keys, block.out = block.v + block_tokens * values;
    std::int64_t entry = view.metadata.snapshot_start[chunk];
    const std::int64_t entries = view.metadata.snapshot_start[chunk + 1];
    for (std::int64_t first = begin; first < end;) {
      std::int64_t last = first + block_tokens < end ? first + block_tokens : end;
      std::int64_t taken = end;  // the token behind which a snapshot is due
      if (entry < entries) taken = begin + view.metadata.positions[entry] - metadata.context_len[chunk];
      if (entry < entries && taken < last) last = taken;
      prepare_block(layer, rule, head, qkv, gates, first, last - first, block);
      pass_block(layer, matrix, last - first, block);
      norm_block(layer, rule, head, z, width, first, last - first, block, out);
      if (entry < entries && taken == last) std::memcpy(at(snapshot_state(view, entry++)), matrix, bytes);
      first = last;
    }
  }, metadata.tokens * heads * keys * values < (1 << 15));
}

}  // namespace inflight::INFLIGHT_ISA
