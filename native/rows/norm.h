// Norms of rows: by their root mean square, or by their mean and variance; and rows that are normed and added.
#pragma once
#include "rows/operation.h"

#ifdef INFLIGHT_ISA
#include <type_traits>

namespace inflight::INFLIGHT_ISA {

// x / sqrt(mean(x²) + eps) · weight
inline void rms_norm(Pool& pool, Format format, const float* x, const float* weight, float eps, std::int64_t tokens,
                     std::int64_t width, void* out) {
  with(format, [&](auto value) {
    auto* at = static_cast<decltype(value)*>(out);
    parallel_rows(pool, tokens, tokens * width * 4, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last; ++t) {
        const float* row = x + t * width;
        hold_normed(at + t * width, row, inverse_rms(row, width, eps), weight, width);
      }
    });
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

// bias: or null.
inline void layer_norm(Pool& pool, Format format, const float* x, const float* weight, const float* bias, float eps,
                       std::int64_t tokens, std::int64_t width, void* out) {
  with(format, [&](auto value) {
    normalise_layer<false>(pool, x, weight, bias, eps, tokens, width, static_cast<decltype(value)*>(out));
  });
}

// x becomes its layer norm, and out holds the same numbers.
inline void layer_norm_sum(Pool& pool, Format format, float* x, const float* weight, const float* bias, float eps,
                           std::int64_t tokens, std::int64_t width, void* out) {
  with(format, [&](auto value) {
    normalise_layer<true>(pool, x, weight, bias, eps, tokens, width, static_cast<decltype(value)*>(out));
  });
}

// out += factor · x, or factor · the RMS norm of x.
inline void add(Pool& pool, const float* x, const float* weight, float eps, float factor, std::int64_t tokens,
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

}  // namespace inflight::INFLIGHT_ISA

#else

namespace inflight {

inline void rms_norm(PreparedPass& pass, const Activation& x, const Vector& weight, float eps, Activation& out) {
  const std::int64_t width = weight.array.size(0);
  expect(x, "x", Kind::f32, width);
  const Format held = begin_as_held(out, width, x.rows, pass.format());
  pass.run([&](Pool& pool, const RowKernels& kernels) {
    kernels.rms_norm(pool, held, x.array.data<float>(), weight.array.data<float>(), eps, x.rows, width,
                     out.array.data());
  });
}

inline void layer_norm(PreparedPass& pass, const Activation& x, const Vector& weight, const Vector* bias, float eps,
                       Activation& out) {
  const std::int64_t width = weight.array.size(0);
  if (bias != nullptr && bias->array.size(0) != width) refuse("a norm's bias must be as long as its weight");
  expect(x, "x", Kind::f32, width);
  const Format held = begin_as_held(out, width, x.rows, pass.format());
  pass.run([&](Pool& pool, const RowKernels& kernels) {
    kernels.layer_norm(pool, held, x.array.data<float>(), weight.array.data<float>(), numbers(bias), eps, x.rows,
                       width, out.array.data());
  });
}

inline void layer_norm_sum(PreparedPass& pass, Activation& x, const Vector& weight, const Vector* bias, float eps,
                           Activation& out) {
  const std::int64_t width = weight.array.size(0);
  if (bias != nullptr && bias->array.size(0) != width) refuse("a norm's bias must be as long as its weight");
  begin(x, Kind::f32, width, x.rows);
  begin(out, pass.act(), width, x.rows);
  pass.run([&](Pool& pool, const RowKernels& kernels) {
    kernels.layer_norm_sum(pool, pass.format(), x.array.data<float>(), weight.array.data<float>(), numbers(bias), eps,
                           x.rows, width, out.array.data());
  });
}

inline void add(PreparedPass& pass, const Activation& x, const Vector* norm, float eps, float factor, Activation& out) {
  const std::int64_t width = norm ? norm->array.size(0) : x.columns;
  expect(x, "x", Kind::f32, out.columns);
  if (width < 1 || x.columns % width != 0) refuse("a norm must be as long as a row of x, or as equal parts of one");
  begin(out, Kind::f32, x.columns, x.rows);
  const std::int64_t parts = x.rows * (x.columns / width);
  pass.run([&](Pool& pool, const RowKernels& kernels) {
    kernels.add(pool, x.array.data<float>(), numbers(norm), eps, factor, parts, width, out.array.data<float>());
  });
}

}  // namespace inflight

#endif
