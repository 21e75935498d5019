// What is done to numbers one by one or row by row: packing, embedding, norms, rotation, sampling. Compiled once per
// instruction set that has vectors of its own.
//
// As in products.h, only headers that live in this namespace or declare plain functions may be included: an inline
// function shared with other files could be kept in the version compiled here, for instructions that the machine lacks.
#include "moe.h"
#include "norm_rope.h"
#include "pack.h"
#include "probes.h"
#include "sampling.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

extern const RowKernels rows;

namespace {

// then(a value of the type that the format holds).
template <class Then>
INLINE void with(Format format, Then&& then) {
  if (format == Format::bf16) {
    then(std::uint16_t{});
  } else {
    then(float{});
  }
}

void pack(Pool& pool, Format format, Hold hold, const SourceMatrix* parts, const Weights& w) {
  if (hold == Hold::int8) return pack_bytes(pool, parts, w);
  if (hold == Hold::int4) return pack_spans(pool, parts, w);
  with(format, [&](auto value) { pack_weights<decltype(value)>(pool, parts, w); });
}

void copy_rows(Pool& pool, Format format, const SourceMatrix& m, std::int64_t columns, void* out) {
  with(format, [&](auto value) { copy_table(pool, m, columns, static_cast<decltype(value)*>(out)); });
}

void embed_packed(Pool& pool, Format format, Hold hold, const Weights& w, const std::int32_t* ids, std::int64_t tokens,
                  float* out) {
  if (hold == Hold::int4) return embed_from_spans(pool, w, ids, tokens, out);
  if (hold == Hold::int8) return embed_from_packed<4>(pool, w, ids, tokens, out);
  with(format, [&](auto value) { embed_from_packed<4 / sizeof value>(pool, w, ids, tokens, out); });
}

void embed_rows(Pool& pool, Format format, const void* rows, std::int64_t columns, const std::int32_t* ids,
                std::int64_t tokens, float* out) {
  with(format, [&](auto value) {
    embed_from_rows(pool, static_cast<const decltype(value)*>(rows), columns, ids, tokens, out);
  });
}

void rms_norm(Pool& pool, Format format, const float* x, const float* weight, float eps, std::int64_t tokens,
              std::int64_t width, void* out) {
  with(format, [&](auto value) {
    normalise(pool, x, weight, eps, tokens, width, static_cast<decltype(value)*>(out));
  });
}

void layer_norm(Pool& pool, Format format, const float* x, const float* weight, const float* bias, float eps,
                std::int64_t tokens, std::int64_t width, void* out) {
  with(format, [&](auto value) {
    normalise_layer(pool, x, weight, bias, eps, tokens, width, static_cast<decltype(value)*>(out));
  });
}

void to_act(Pool& pool, Format format, const float* x, std::int64_t tokens, std::int64_t width, void* out) {
  with(format, [&](auto value) {
    auto* at = static_cast<decltype(value)*>(out);
    map_rows(pool, x, tokens, width, [](vf v) { return v; }, [=](std::int64_t i, float y) { hold(at + i, y); });
  });
}

void activate(Pool& pool, Format format, Nonlinearity kind, const float* x, const float* by, std::int64_t stride,
              std::int64_t tokens, std::int64_t width, void* out) {
  with(format, [&](auto value) {
    auto* at = static_cast<decltype(value)*>(out);
    const auto to = [=](std::int64_t i, float y) { hold(at + i, by ? y * by[i / width * stride + i % width] : y); };
    if (kind == Nonlinearity::gelu) return map_rows(pool, x, tokens, width, [](vf v) { return gelu(v); }, to);
    if (kind == Nonlinearity::silu) return map_rows(pool, x, tokens, width, [](vf v) { return silu(v); }, to);
    map_rows(pool, x, tokens, width, [](vf v) { return v > all(0.0f) ? v * v : v != v ? v : vf{}; }, to);
  });
}

void scale(Pool& pool, float* x, float factor, std::int64_t tokens, std::int64_t width) {
  map_rows(pool, x, tokens, width, [=](vf v) { return v * factor; }, [=](std::int64_t i, float y) { x[i] = y; });
}

void soft_cap(Pool& pool, float* x, float cap, std::int64_t tokens, std::int64_t width) {
  map_rows(pool, x, tokens, width, [=](vf v) { return tanh(v / all(cap)) * all(cap); },
           [=](std::int64_t i, float y) { x[i] = y; });
}

void rope_and_write(Pool& pool, Format format, const Projection& qkv, const KVLayer& layer,
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

}  // namespace

const RowKernels rows = {
    pack, copy_rows, embed_packed, embed_rows, rms_norm, layer_norm, to_act, activate, add_rows, scale, soft_cap,
    route, gather_rows, add_weighted, add_gated, rope_and_write, sample_rows, score_rows, read_bandwidth,
};

}  // namespace inflight::INFLIGHT_ISA
