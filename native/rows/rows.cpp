// Kernels of rows: packing, embedding, norms, rotation, states, sampling. Compiled once for each instruction set that
// has vectors of its own.
//
// As in products.h, only headers that live in this namespace or declare plain functions may be included: an inline
// function shared with other files could be kept in the version compiled here, for instructions that the machine lacks.
#include "gemm/moe.h"
#include "isa/probes.h"
#include "pass/operations.h"
#include "recurrence/recurrence.h"
#include "sampling/sampling.h"
#include "types.h"
#include "weights/pack.h"

namespace inflight::INFLIGHT_ISA {

extern const RowKernels rows;

namespace {

void pack(Pool& pool, Format format, Hold hold, const SourceMatrix* parts, const Weights& w) {
  if (hold == Hold::int8) return pack_spans<8>(pool, parts, w);
  if (hold == Hold::int4) return pack_spans<4>(pool, parts, w);
  with(format, [&](auto value) { pack_weights<decltype(value)>(pool, parts, w); });
}

void copy_rows(Pool& pool, Format format, const SourceMatrix& m, std::int64_t columns, void* out) {
  with(format, [&](auto value) { copy_table(pool, m, columns, static_cast<decltype(value)*>(out)); });
}

void copy_bytes(Pool& pool, const SourceMatrix& m, std::int64_t columns, std::int64_t share, std::int8_t* out,
                float* scales) {
  copy_quantized(pool, m, columns, share, out, scales);
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

}  // namespace

const RowKernels rows = {
#define ROW_KERNEL(name, ...) name,
#include "rows/kernels.h"
#undef ROW_KERNEL
    read_bandwidth,
};

}  // namespace inflight::INFLIGHT_ISA
