// Operations of a pass on the KV cache: rotation and writing of keys and values, and attention over them.
//
// Knows which heads and widths go together; nothing of what is computed (rows/, attention/).
#pragma once
#include <string>

#include "pass/arguments.h"
#include "pass/prepared_pass.h"

namespace inflight {

// One of which softmax attention is computed over keys and values of one width.
inline const KVLayer& with_values(const PreparedPass& pass, std::int64_t layer) {
  const KVLayer& found = pass.layer_at(layer);
  if (found.key_dim != found.value_dim)
    refuse("layer " + std::to_string(layer) + " has keys of " + std::to_string(found.key_dim) + " and values of " +
           std::to_string(found.value_dim) + " numbers, which must be equally many");
  return found;
}

// One that keeps no values beside its keys.
inline const KVLayer& without_values(const PreparedPass& pass, std::int64_t layer) {
  const KVLayer& found = pass.layer_at(layer);
  if (!found.values_in_keys() || found.kv_heads != 1)
    refuse("layer " + std::to_string(layer) + " keeps values beside its keys; latent attention has none");
  return found;
}

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
