// The left side of a product, made ready for the kernel: x as it is, padded, widened, or quantized to int8.
//
// int8 and int4 weights meet int8 activations: those are quantized here, where a product reads them, from the format in
// which activations are held; nothing before or after a product knows of it.
#pragma once
#include "gemm/quantize.h"
#include "gemm/tile.h"
#include "isa/float16.h"
#include "pool/parallel.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

// x as the kernel reads it.
template <class F>
struct Staged {
  const typename F::X* x;
  std::int64_t stride;
};

// Used where it lies, if the kernel can read it so; else padded to whole steps, or widened to float32.
template <class F, class Value>
Staged<F> stage_values(Pool& pool, const Value* from, std::int64_t tokens, const Weights& w) {
  using X = typename F::X;
  const std::int64_t columns = w.columns, stride = w.steps * F::x_per_step;
  constexpr bool same = sizeof(X) == sizeof(Value) * F::values_per_step / F::x_per_step;
  if (same && columns == w.steps * F::values_per_step) return {reinterpret_cast<const X*>(from), stride};
  const std::int64_t width = w.steps * F::values_per_step;  // columns, rounded up to whole steps
  X* to = static_cast<X*>(pool.scratch(0, tokens * stride * sizeof(X)));
  parallel_rows(pool, tokens, tokens * columns * 2, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      const Value* row = from + t * columns;
      if constexpr (same) {
        Value* out = reinterpret_cast<Value*>(to) + t * width;
        std::memcpy(out, row, columns * sizeof(Value));
        for (std::int64_t k = columns; k < width; ++k) out[k] = 0;
      } else {
        float* out = reinterpret_cast<float*>(to) + t * width;
        std::int64_t k = 0;
        for (; k + lanes <= columns; k += lanes) store(out + k, load_bf16(row + k));
        for (; k < columns; ++k) out[k] = from_bf16(row[k]);
        for (; k < width; ++k) out[k] = 0;
      }
    }
  });
  return {to, stride};
}

// Quantized, each 32 inputs of a token with a scale of their own (spans.h says how x of a span lies), and mixed before
// where the weights are.
template <class F, class Value>
Staged<F> stage_spans(Pool& pool, const Value* from, std::int64_t tokens, const Weights& w) {
  using X = typename F::X;
  const std::int64_t columns = w.columns, inputs = w.spans.inputs, lanes_of_span = x_lanes_of<F>(inputs);
  const std::int64_t stride = w.steps * lanes_of_span;
  const ByteTable meanings(w.spans.meanings);
  X* to = static_cast<X*>(pool.scratch(0, tokens * stride * sizeof(X)));
  parallel_rows(pool, tokens, tokens * columns * 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      const auto* row = from + t * columns;
      X* out = to + t * stride;
      Scale scale{};
      for (std::int64_t k = 0; k < columns; k += inputs, out += lanes_of_span) {
        const std::int64_t left = columns - k, width = left < inputs ? left : inputs;
        // Where bytes are widened they stand at the end of their own place, and are overtaken from its beginning.
        std::int8_t* bytes = reinterpret_cast<std::int8_t*>(out + lanes_of_span - 2) - inputs;
        std::int32_t sum;
        if (w.spans.mixed && width == max_span) {
          alignas(64) float mixed[max_span];
          mix_span(row + k, mixed);
          scale = scale_of(largest_bits(mixed, max_span));
          sum = quantize(mixed, max_span, scale, bytes);
        } else {
          if (k % max_span == 0) scale = scale_of(largest_bits(row + k, left < max_span ? left : max_span));
          sum = quantize(row + k, width, scale, bytes);
        }
        if (width < inputs) std::memset(bytes + width, 0, inputs - width);
        if constexpr (F::x_per_step == 2) F::Dot::lay(bytes, inputs / 4, out + 1);
        const std::int32_t begin = F::first(sum, meanings);
        const float together = static_cast<float>(sum) * scale.scale;
        std::memcpy(out, &begin, 4);
        std::memcpy(out + lanes_of_span - 2, &scale.scale, 4);
        std::memcpy(out + lanes_of_span - 1, &together, 4);
      }
    }
  });
  return {to, stride};
}

template <class F, class Value>
Staged<F> stage(Pool& pool, const Value* from, std::int64_t tokens, const Weights& w) {
  if constexpr (by_spans<F>) {
    return stage_spans<F>(pool, from, tokens, w);
  } else {
    return stage_values<F>(pool, from, tokens, w);
  }
}

}  // namespace inflight::INFLIGHT_ISA
