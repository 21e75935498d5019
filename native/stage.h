// The left side of a product, made ready for the kernel: x as it is, padded, widened, or quantised to int8.
//
// int8 and int4 weights meet int8 activations: those are quantised here, where a product reads them, from the format in which
// activations are held; nothing before or after a product knows of it.
#pragma once
#include "parallel.h"
#include "quantize.h"
#include "tile.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

// x as the kernel reads it. int8: value = q · scale of its token, and 128 · Σ q is what the weights' 128 adds to a sum.
// Over many columns either may pass 32 bits; what is left when one is taken off the other does not, so both wrap.
template <class F>
struct Staged {
  const typename F::X* x;
  std::int64_t stride;
  const float* scales;
  const std::int32_t* excess;
};

// Used where it lies, if the kernel can read it so; else padded to whole steps, or widened to float32.
template <class F, class Value>
Staged<F> stage_values(Pool& pool, const Value* from, std::int64_t tokens, const Weights& w) {
  using X = typename F::X;
  const std::int64_t columns = w.columns, stride = w.steps * F::x_per_step;
  constexpr bool same = sizeof(X) == sizeof(Value) * F::values_per_step / F::x_per_step;
  if (same && columns == w.steps * F::values_per_step) return {reinterpret_cast<const X*>(from), stride, nullptr, nullptr};
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
  return {to, stride, nullptr, nullptr};
}

// Quantised, each token with a scale of its own.
template <class F, class Value>
Staged<F> stage_bytes(Pool& pool, const Value* from, std::int64_t tokens, const Weights& w) {
  using X = typename F::X;
  const std::int64_t columns = w.columns, stride = w.steps * F::x_per_step, width = w.steps * F::values_per_step;
  X* to = static_cast<X*>(pool.scratch(0, tokens * (stride * sizeof(X) + 8)));
  float* scales = reinterpret_cast<float*>(to + tokens * stride);
  std::int32_t* excess = reinterpret_cast<std::int32_t*>(scales + tokens);
  parallel_rows(pool, tokens, tokens * columns * 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      const auto* row = from + t * columns;
      const Scale scale = scale_of(largest_bits(row, columns));
      scales[t] = scale.scale;
      // Where bytes are widened they stand at the end of the row's own place, and are overtaken from its beginning.
      std::int8_t* bytes = reinterpret_cast<std::int8_t*>(to + (t + 1) * stride) - width;
      excess[t] = static_cast<std::int32_t>(128u * static_cast<std::uint32_t>(quantize(row, columns, scale, bytes)));
      std::memset(bytes + columns, 0, width - columns);
      if constexpr (F::x_per_step == 2) F::lay(bytes, w.steps, to + t * stride);
    }
  });
  return {to, stride, scales, excess};
}

// The same in spans (tile.h says what x of a span is).
template <class F, class Value>
Staged<F> stage_spans(Pool& pool, const Value* from, std::int64_t tokens, const Weights& w) {
  using X = typename F::X;
  const std::int64_t inputs = w.spans.inputs, columns = w.columns, span_lanes = x_lanes_of<F>(inputs);
  const std::int64_t stride = w.steps * span_lanes;
  const ByteTable meanings(w.spans.meanings);
  X* to = static_cast<X*>(pool.scratch(0, tokens * (stride * sizeof(X) + 4)));
  float* scales = reinterpret_cast<float*>(to + tokens * stride);
  parallel_rows(pool, tokens, tokens * columns * 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      const auto* row = from + t * columns;
      const Scale scale = scale_of(largest_bits(row, columns));
      scales[t] = scale.scale;
      X* out = to + t * stride;
      for (std::int64_t k = 0; k < columns; k += inputs, out += span_lanes) {
        const std::int64_t width = columns - k < inputs ? columns - k : inputs;
        // As of whole rows: bytes that are widened stand at the end of their place.
        std::int8_t* bytes = reinterpret_cast<std::int8_t*>(out + span_lanes - 1) - inputs;
        const std::int32_t sum = quantize(row + k, width, scale, bytes), begin = F::first(sum, meanings);
        if (width < inputs) std::memset(bytes + width, 0, inputs - width);
        if constexpr (F::x_per_step == 2) F::Dot::lay(bytes, inputs / 4, out + 1);
        const float together = static_cast<float>(sum);
        std::memcpy(out, &begin, 4);
        std::memcpy(out + span_lanes - 1, &together, 4);
      }
    }
  });
  return {to, stride, scales, nullptr};
}

template <class F, class Value>
Staged<F> stage(Pool& pool, const Value* from, std::int64_t tokens, const Weights& w) {
  if constexpr (by_spans<F>) {
    return stage_spans<F>(pool, from, tokens, w);
  } else if constexpr (F::values_per_step == 4) {
    return stage_bytes<F>(pool, from, tokens, w);
  } else {
    return stage_values<F>(pool, from, tokens, w);
  }
}

}  // namespace inflight::INFLIGHT_ISA
