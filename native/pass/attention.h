// Attention over the KV cache, as an operation of a pass: checks heads and widths. attention/ computes it.
#pragma once
#include <string>

#include "pass/arguments.h"
#include "pass/prepared_pass.h"

namespace inflight {

inline void attention(PreparedPass& pass, const Activation& q, std::int64_t layer, float scale, std::int64_t window,
                      Activation& out, float soft_cap, const Vector* sinks, bool causal,
                      const Vector* position_bias) {
  KVLayer kept = pass.layer_at(layer);
  const std::int64_t heads = q.columns / kept.key_dim;
  if (kept.values_in_keys()) {
    kept.value_dim = kept.padded_dim = heads > 0 ? out.columns / heads : 0;
    if (kept.value_dim < 1 || kept.value_dim % panel != 0 || kept.value_dim > kept.key_dim)
      refuse("values that are a part of keys of " + std::to_string(kept.key_dim) +
             " must be no more, and a multiple of 16 numbers, not " + std::to_string(kept.value_dim));
  } else {
    with_values(pass, layer);
  }
  expect(q, "q", pass.act(), heads * kept.key_dim);
  if (q.rows != pass.tokens()) refuse("q must have a row for each token");
  if (!(scale > 0)) refuse("scale must be positive");
  if (!(soft_cap >= 0)) refuse("soft_cap must be positive, or 0 for none");
  if (sinks != nullptr && sinks->array.size(0) != heads) refuse("sinks must have a number for each query head");
  begin(out, pass.act(), heads * kept.value_dim, q.rows);
  const AttentionPlan& plan = pass.plan_for(kept, heads, window, causal, layer);
  const AttentionMetadata metadata = pass.metadata_of(layer);
  std::int64_t reach = 0;
  if (position_bias != nullptr) {
    const std::int64_t size = position_bias->array.size(0);
    reach = (size / heads - 63) / 2;
    if (causal || (2 * reach + 63) * heads != size)
      refuse("position_bias must have 2 L + 63 numbers for each query head of attention to both sides");
    for (std::int64_t i = 0; i < metadata.chunks; ++i)
      if (metadata.context_len[i] + metadata.query_start[i + 1] - metadata.query_start[i] > reach)
        refuse("position_bias must reach as far as the longest text");
  }
  const Scores scores{scale, soft_cap, numbers(sinks), numbers(position_bias), reach};
  pass.run([&](Pool& pool, const RowKernels&) {
    pass.attention_kernels().attention(pool, q.array.data(), kept, metadata, plan, scores,
                                       out.array.data());
  });
}

}  // namespace inflight
