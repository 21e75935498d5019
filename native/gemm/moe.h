// Around the products of a mixture of experts: picks experts for a token, and adds up what they yield.
//
// Everything here looks at one token by itself, in an order of its own, so that its bits do not depend on which tokens
// share its experts. experts.cpp arranges which experts' matrices go with which rows.
#pragma once
#include "isa/elementary.h"
#include "pool/parallel.h"
#include "rows/row_loops.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

INLINE void softmax(const float* logits, std::int64_t count, float* scores) {
  float most = logits[0], sum = 0;
  for (std::int64_t e = 1; e < count; ++e) most = logits[e] > most ? logits[e] : most;
  for (std::int64_t e = 0; e < count; e += lanes) {
    float part[lanes];
    const int many = static_cast<int>(count - e < lanes ? count - e : lanes);
    for (int i = 0; i < lanes; ++i) part[i] = i < many ? logits[e + i] - most : 0.0f;
    const vf below = load<vf>(part);
    store(part, below == below ? exp(below) : below);
    for (int i = 0; i < many; ++i) scores[e + i] = part[i], sum += part[i];
  }
  for (std::int64_t e = 0; e < count; ++e) scores[e] /= sum;
}

// Numbers of the `wanted` largest values in falling order, on a tie the lower number first. Without NaN among them.
INLINE void take_largest(float* values, std::int64_t count, std::int64_t wanted, std::int32_t* taken) {
  for (std::int64_t r = 0; r < wanted; ++r) {
    std::int64_t best = -1;
    for (std::int64_t e = 0; e < count; ++e) {
      if (best >= 0 && !(values[e] > values[best])) continue;
      bool is_taken = false;
      for (std::int64_t i = 0; i < r; ++i) is_taken |= taken[i] == e;
      if (!is_taken) best = e;
    }
    taken[r] = static_cast<std::int32_t>(best);
  }
}

// Of experts outside of the best groups the values become −∞. sums, best: memory for a number for each group.
INLINE void keep_best_groups(const Mixture& m, float* values, float* sums, std::int32_t* best) {
  const std::int64_t width = m.experts / m.groups;
  for (std::int64_t g = 0; g < m.groups; ++g) {
    std::int32_t largest[8];
    take_largest(values + g * width, width, m.group_best, largest);
    sums[g] = 0;
    for (std::int64_t r = 0; r < m.group_best; ++r) sums[g] += values[g * width + largest[r]];
  }
  take_largest(sums, m.groups, m.top_groups, best);
  for (std::int64_t g = 0; g < m.groups; ++g) {
    bool is_kept = false;
    for (std::int64_t r = 0; r < m.top_groups; ++r) is_kept |= best[r] == g;
    for (std::int64_t e = g * width; !is_kept && e < (g + 1) * width; ++e) values[e] = -__builtin_inff();
  }
}

// SparseMixer: one expert after the other. The next is the one with the largest logit that is left, on a tie the lower
// number; its weight is its share of the softmax over those left whose logit is near the largest, that is, at most
// 2 · jitter below it, relative to the larger of their own magnitude and it. NaN are near everything, and stay NaN.
// memory: a number for each expert.
INLINE void mix_sparsely(const Mixture& m, const float* logits, float* memory, std::int32_t* experts, float* weights) {
  for (std::int64_t e = 0; e < m.experts; ++e) memory[e] = logits[e] == logits[e] ? logits[e] : -__builtin_inff();
  take_largest(memory, m.experts, m.top_k, experts);
  std::memcpy(memory, logits, m.experts * sizeof(float));
  const float jitter = 2 * m.jitter;
  for (std::int64_t r = 0; r < m.top_k; ++r) {
    const float most = memory[experts[r]];
    float sum = 0;
    for (std::int64_t e = 0; e < m.experts; ++e) {
      const float magnitude = logits[e] < 0 ? -logits[e] : logits[e], factor = magnitude < most ? most : magnitude;
      const bool is_far = (most - logits[e]) / factor > jitter || memory[e] == -__builtin_inff();
      if (!is_far) sum += memory[e] == memory[e] ? exp(memory[e] - most) : memory[e];
    }
    weights[r] = m.scale / sum;
    memory[experts[r]] = -__builtin_inff();
  }
}

// One token's. memory: 4 numbers for each expert.
INLINE void route_token(const Mixture& m, const float* logits, float* memory, std::int32_t* experts, float* weights) {
  float *scores = memory, *values = scores + m.experts, *sums = values + m.experts;
  auto* groups = reinterpret_cast<std::int32_t*>(sums + m.experts);
  if (m.scores == ExpertScores::sparsemixer) return mix_sparsely(m, logits, memory, experts, weights);
  if (m.scores == ExpertScores::sigmoid) {
    for (std::int64_t e = 0; e < m.experts; ++e) scores[e] = sigmoid(logits[e]);
  } else {
    softmax(logits, m.experts, scores);
  }
  for (std::int64_t e = 0; e < m.experts; ++e) {
    const float value = m.correction ? scores[e] + m.correction[e] : scores[e];
    values[e] = value == value ? value : -__builtin_inff();
  }
  if (m.groups > 1) keep_best_groups(m, values, sums, groups);
  take_largest(values, m.experts, m.top_k, experts);
  float sum = 0;
  for (std::int64_t r = 0; r < m.top_k; ++r) sum += weights[r] = scores[experts[r]];
  sum += m.sum_offset;
  const float divisor = !m.renormalize ? 1.0f : sum < 1e-20f ? 1e-20f : sum;
  for (std::int64_t r = 0; r < m.top_k; ++r)
    weights[r] = weights[r] / divisor * (m.expert_scale ? m.scale * m.expert_scale[experts[r]] : m.scale);
}

inline void route(Pool& pool, const float* logits, std::int64_t tokens, const Mixture& m, std::int32_t* experts,
                  float* weights) {
  pool.reserve(4 * m.experts * sizeof(float));
  const std::int64_t work = tokens * m.experts * (8 + m.top_k), pieces = work < 1 << 16 ? 1 : 4 * pool.threads();
  parallel_for(pool, pieces, [&](std::int64_t i, int worker) {
    for (std::int64_t t = tokens * i / pieces; t < tokens * (i + 1) / pieces; ++t)
      route_token(m, logits + t * m.experts, static_cast<float*>(pool.own(worker)), experts + t * m.top_k,
                  weights + t * m.top_k);
  });
}

template <class Item>
INLINE void gather_row(const void* from, const std::int32_t* order, std::int64_t columns, void* to) {
  for (std::int64_t j = 0; j < columns; ++j) static_cast<Item*>(to)[j] = static_cast<const Item*>(from)[order[j]];
}

inline void gather(Pool& pool, const void* from, const std::int32_t* rows, const std::int32_t* order,
                   std::int64_t count, std::int64_t columns, std::int64_t item, void* to) {
  const std::int64_t bytes = columns * item;
  parallel_rows(pool, count, order ? count * columns * 8 : count * bytes, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const char* x = static_cast<const char*>(from) + (rows ? rows[i] : i) * bytes;
      char* at = static_cast<char*>(to) + i * bytes;
      if (order == nullptr) {
        std::memcpy(at, x, bytes);
      } else if (item == 2) {
        gather_row<std::uint16_t>(x, order, columns, at);
      } else {
        gather_row<float>(x, order, columns, at);
      }
    }
  });
}

inline void add_weighted(Pool& pool, const float* x, const std::int32_t* places, const float* weights,
                         std::int64_t top_k, std::int64_t tokens, std::int64_t width, float* out) {
  parallel_rows(pool, tokens, tokens * top_k * width * 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      const std::int32_t* at = places + t * top_k;
      const float* weight = weights + t * top_k;
      float* to = out + t * width;
      std::int64_t i = 0;
      for (; i + lanes <= width; i += lanes) {
        vf sum{};
        for (std::int64_t r = 0; r < top_k; ++r) sum = fma(all(weight[r]), load<vf>(x + at[r] * width + i), sum);
        store(to + i, load<vf>(to + i) + sum);
      }
      for (; i < width; ++i) {
        float sum = 0;
        for (std::int64_t r = 0; r < top_k; ++r) sum += weight[r] * x[at[r] * width + i];
        to[i] += sum;
      }
    }
  });
}

}  // namespace inflight::INFLIGHT_ISA
