// What is done to numbers one by one or row by row: packing, embedding, norms, rotation, sampling. Compiled once per
// instruction set that has vectors of its own.
//
// As in products.h, only headers that live in this namespace or declare plain functions may be included: an inline
// function shared with other files could be kept in the version compiled here, for instructions that the machine lacks.
#include "gemm/moe.h"
#include "isa/elementary.h"
#include "isa/probes.h"
#include "recurrence/recurrence.h"
#include "rows/latent.h"
#include "rows/norm_rope.h"
#include "sampling/sampling.h"
#include "types.h"
#include "weights/pack.h"

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
  if (hold == Hold::int8) return pack_spans<8>(pool, parts, w);
  if (hold == Hold::int4) return pack_spans<4>(pool, parts, w);
  with(format, [&](auto value) { pack_weights<decltype(value)>(pool, parts, w); });
}

void copy_rows(Pool& pool, Format format, const SourceMatrix& m, std::int64_t columns, void* out) {
  with(format, [&](auto value) { copy_table(pool, m, columns, static_cast<decltype(value)*>(out)); });
}

void embed_packed(Pool& pool, Format format, Hold hold, const Weights& w, const std::int32_t* ids, std::int64_t tokens,
                  float* out) {
  if (hold == Hold::int4) return embed_from_spans<4>(pool, w, ids, tokens, out);
  if (hold == Hold::int8) return embed_from_spans<8>(pool, w, ids, tokens, out);
  with(format, [&](auto value) { embed_from_packed<4 / sizeof value>(pool, w, ids, tokens, out); });
}

void embed_rows(Pool& pool, Format format, const void* rows, std::int64_t columns, const std::int32_t* ids,
                std::int64_t tokens, float* out) {
  with(format, [&](auto value) {
    embed_from_rows(pool, static_cast<const decltype(value)*>(rows), columns, ids, tokens, out);
  });
}

void copy_bytes(Pool& pool, const SourceMatrix& m, std::int64_t columns, std::int64_t share, std::int8_t* out,
                float* scales) {
  copy_quantized(pool, m, columns, share, out, scales);
}

void embed_bytes(Pool& pool, const std::int8_t* rows, const float* scales, std::int64_t columns, std::int64_t share,
                 const std::int32_t* ids, std::int64_t tokens, float* out) {
  embed_from_bytes(pool, rows, scales, columns, share, ids, tokens, out);
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
    normalise_layer<false>(pool, x, weight, bias, eps, tokens, width, static_cast<decltype(value)*>(out));
  });
}

void layer_norm_sum(Pool& pool, Format format, float* x, const float* weight, const float* bias, float eps,
                    std::int64_t tokens, std::int64_t width, void* out) {
  with(format, [&](auto value) {
    normalise_layer<true>(pool, x, weight, bias, eps, tokens, width, static_cast<decltype(value)*>(out));
  });
}

void add_rows_of(Pool& pool, Format format, const void* rows, std::int64_t columns, const std::int32_t* ids,
                 std::int64_t tokens, float* out) {
  with(format, [&](auto value) {
    add_from_rows(pool, static_cast<const decltype(value)*>(rows), columns, ids, tokens, out);
  });
}

void mean(Pool& pool, const float* x, const std::int32_t* starts, const std::int32_t* ends, std::int64_t count,
          std::int64_t width, float* out) {
  mean_rows(pool, x, starts, ends, count, width, out);
}

void to_act(Pool& pool, Format format, const float* x, std::int64_t tokens, std::int64_t width, void* out) {
  with(format, [&](auto value) {
    auto* at = static_cast<decltype(value)*>(out);
    parallel_rows(pool, tokens, tokens * width * 8, [&](std::int64_t first, std::int64_t last) {
      hold_row(at + first * width, x + first * width, (last - first) * width);
    });
  });
}

// y = the nonlinearity of x.
using Curve = void (*)(const float* x, std::int64_t count, float* y, const float* parameters);

// The parameters are xIELU's.
Curve curve_of(Nonlinearity kind) {
#define CURVE(of) \
  [](const float* x, std::int64_t count, float* y, const float* p) { map_run(x, count, y, of); (void)p; }
  switch (kind) {
    case Nonlinearity::gelu: return CURVE([](vf v) { return gelu(v); });
    case Nonlinearity::gelu_erf: return CURVE([](vf v) { return gelu_erf(v); });
    case Nonlinearity::silu: return CURVE([](vf v) { return silu(v); });
    case Nonlinearity::relu: return CURVE([](vf v) { return relu(v); });
    case Nonlinearity::tanh: return CURVE([](vf v) { return tanh(v); });
    case Nonlinearity::relu2: return CURVE([](vf v) { return v > all(0.0f) ? v * v : v != v ? v : vf{}; });
    case Nonlinearity::xielu: break;
  }
  return CURVE(([above = p[0], below = p[1]](vf v) { return xielu(v, above, below); }));
#undef CURVE
}

void activate(Pool& pool, Format format, Nonlinearity kind, const float* parameters, const float* x, const float* by,
              std::int64_t stride, std::int64_t tokens, std::int64_t width, void* out) {
  const Curve curve = curve_of(kind);
  const auto bend = [=](const float* from, std::int64_t count, float* y) { curve(from, count, y, parameters); };
  with(format, [&](auto value) {
    auto* at = static_cast<decltype(value)*>(out);
    map_rows(pool, x, tokens, width, bend, [=](std::int64_t i, std::int64_t count, const float* y) {
      if (!by) return hold_row(at + i, y, count);
      for (std::int64_t k = 0; k < count; ++k)
        hold(at + i + k, y[k] * by[(i + k) / width * stride + (i + k) % width]);
    });
  });
}

void scale(Pool& pool, float* x, float factor, std::int64_t tokens, std::int64_t width) {
  parallel_rows(pool, tokens, tokens * width * 8, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first * width; i < last * width; ++i) x[i] *= factor;
  });
}

void soft_cap(Pool& pool, float* x, float cap, std::int64_t tokens, std::int64_t width) {
  map_rows(pool, x, tokens, width,
           [=](const float* from, std::int64_t count, float* y) {
             map_run(from, count, y, [=](vf v) { return tanh(v / all(cap)) * all(cap); });
           },
           [=](std::int64_t i, std::int64_t count, const float* y) { hold_row(x + i, y, count); });
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

void rope_and_write_latent(Pool& pool, Format format, const float* q, const float* kv, std::int64_t heads,
                           std::int64_t nope, const KVLayer& layer, const AttentionMetadata& metadata, const Rope& rope,
                           void* nope_out, void* q_out) {
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

void heads_into_place(Pool& pool, Format format, const float* x, std::int64_t count, std::int64_t tokens,
                      std::int64_t width, std::int64_t heads, std::int64_t first, std::int64_t stride, void* out) {
  with(format, [&](auto value) {
    place_heads(pool, x, count, tokens, width, heads, first, stride, static_cast<decltype(value)*>(out));
  });
}

void convolve(Pool& pool, Format format, const StateView& view, const AttentionMetadata& metadata,
              const Convolution& given, const float* x, std::int64_t width, float* out) {
  with(format, [&](auto value) { convolve_silu<decltype(value)>(pool, view, metadata, given, x, width, out); });
}

void convolve_gated(Pool& pool, Format format, const StateView& view, const AttentionMetadata& metadata,
                    const Convolution& given, const float* x, void* out) {
  with(format, [&](auto value) {
    convolve_gates(pool, view, metadata, given, x, static_cast<decltype(value)*>(out));
  });
}

void delta_rule(Pool& pool, Format format, const StateView& view, const AttentionMetadata& metadata,
                const DeltaRule& rule, const float* qkv, const float* z, std::int64_t width, const float* gates,
                void* out) {
  with(format, [&](auto value) {
    run_delta_rule(pool, view, metadata, rule, qkv, z, width, gates, static_cast<decltype(value)*>(out));
  });
}

void gate(Pool& pool, Format format, const float* gates, std::int64_t tokens, std::int64_t width, void* x) {
  with(format, [&](auto value) { gate_rows(pool, gates, tokens, width, static_cast<decltype(value)*>(x)); });
}

}  // namespace

const RowKernels rows = {
    pack, copy_rows, embed_packed, embed_rows, copy_bytes, embed_bytes, rms_norm, layer_norm, layer_norm_sum,
    add_rows_of, mean, to_act, activate,
    add_rows, scale, soft_cap, route, gather, add_weighted, add_gated, rope_and_write, rope_and_write_latent,
    heads_into_place, convolve, convolve_gated, delta_rule, gate, sample_rows, score_rows, read_bandwidth,
};

}  // namespace inflight::INFLIGHT_ISA
