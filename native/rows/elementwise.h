// Operations on numbers one by one: rounding, activation functions, factors, caps, gates.
#pragma once
#include <cstring>

#include "rows/operation.h"

#ifdef INFLIGHT_ISA

namespace inflight::INFLIGHT_ISA {

inline void to_act(Pool& pool, Format format, const float* x, std::int64_t tokens, std::int64_t width, void* out) {
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
inline Curve curve_of(Nonlinearity kind) {
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

// Of each token `width` numbers; times those of `by`, at a stride of `stride` from token to token, where there are any.
// parameters: those of xielu, else null.
inline void activate(Pool& pool, Format format, Nonlinearity kind, const float* parameters, const float* x,
                     const float* by, std::int64_t stride, std::int64_t tokens, std::int64_t width, void* out) {
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

inline void scale(Pool& pool, float* x, float factor, std::int64_t tokens, std::int64_t width) {
  parallel_rows(pool, tokens, tokens * width * 8, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first * width; i < last * width; ++i) x[i] *= factor;
  });
}

inline void soft_cap(Pool& pool, float* x, float cap, std::int64_t tokens, std::int64_t width) {
  map_rows(pool, x, tokens, width,
           [=](const float* from, std::int64_t count, float* y) {
             map_run(from, count, y, [=](vf v) { return tanh(v / all(cap)) * all(cap); });
           },
           [=](std::int64_t i, std::int64_t count, const float* y) { hold_row(x + i, y, count); });
}

// out[t] += sigmoid(gate[t]) · x[t]
inline void add_gated(Pool& pool, const float* x, const float* gate, std::int64_t tokens, std::int64_t width,
                      float* out) {
  parallel_rows(pool, tokens, tokens * width * 8, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      const float share = sigmoid(gate[t]);
      for (std::int64_t i = t * width; i < (t + 1) * width; ++i) out[i] += share * x[i];
    }
  });
}

// x ← x · sigmoid(gate)
inline void gate(Pool& pool, Format format, const float* gates, std::int64_t tokens, std::int64_t width, void* x) {
  const auto sigmoid = [](vf v) { return all(1.0f) / (all(1.0f) + exp(-v)); };
  with(format, [&](auto value) {
    auto* at = static_cast<decltype(value)*>(x);
    map_rows(pool, gates, tokens, width,
             [&](const float* from, std::int64_t count, float* y) { map_run(from, count, y, sigmoid); },
             [&](std::int64_t i, std::int64_t count, const float* y) {
               for (std::int64_t k = 0; k < count; ++k) hold(at + i + k, read(at[i + k]) * y[k]);
             });
  });
}

}  // namespace inflight::INFLIGHT_ISA

#else

namespace inflight {

inline void clear(PreparedPass& pass, Activation& out) {
  begin(out, Kind::f32, out.columns, pass.tokens());
  const TracedCall traced(pass.backend().trace());
  std::memset(out.array.data(), 0, static_cast<std::size_t>(out.rows * out.columns) * sizeof(float));
}

inline void to_act(PreparedPass& pass, const Activation& x, Activation& out) {
  expect(x, "x", Kind::f32, out.columns);
  begin(out, pass.act(), x.columns, x.rows);
  pass.run([&](Pool& pool, const RowKernels& kernels) {
    kernels.to_act(pool, pass.format(), x.array.data<float>(), x.rows, x.columns, out.array.data());
  });
}

// parameters: the two of xielu. by: what is multiplied, its columns from the first on.
inline void activate(PreparedPass& pass, const Activation& x, const std::string& kind, Activation& out,
                     const Vector* parameters, const Activation* by, std::int64_t first) {
  const Nonlinearity known = nonlinearity_of(kind);
  if (known == Nonlinearity::xielu && (parameters == nullptr || parameters->array.size(0) != 2))
    refuse("xielu needs its two parameters");
  expect(x, "x", Kind::f32, out.columns);
  if (by != nullptr && (by->kind != Kind::f32 || by->rows != x.rows || first < 0 || first > by->columns - x.columns))
    refuse("what is multiplied must hold float32, a row for each of x, and its columns from the first on");
  const Format held = begin_as_held(out, x.columns, x.rows, pass.format());
  const float* factors = by ? by->array.data<float>() + first : nullptr;
  pass.run([&](Pool& pool, const RowKernels& kernels) {
    kernels.activate(pool, held, known, numbers(parameters), x.array.data<float>(), factors,
                     by ? by->columns : 0, x.rows, x.columns, out.array.data());
  });
}

inline void scale(PreparedPass& pass, Activation& x, float factor) {
  begin(x, Kind::f32, x.columns, x.rows);
  pass.run([&](Pool& pool, const RowKernels& kernels) {
    kernels.scale(pool, x.array.data<float>(), factor, x.rows, x.columns);
  });
}

inline void soft_cap(PreparedPass& pass, Activation& x, float cap) {
  if (!(cap > 0)) refuse("cap must be positive");
  begin(x, Kind::f32, x.columns, x.rows);
  pass.run([&](Pool& pool, const RowKernels& kernels) {
    kernels.soft_cap(pool, x.array.data<float>(), cap, x.rows, x.columns);
  });
}

inline void add_gated(PreparedPass& pass, const Activation& x, const Activation& gate, Activation& out) {
  expect(gate, "gate", Kind::f32, 1);
  if (x.kind != Kind::f32 || gate.rows != x.rows) refuse("x must hold float32, and gate a row for each of its rows");
  begin(out, Kind::f32, x.columns, x.rows);
  pass.run([&](Pool& pool, const RowKernels& kernels) {
    kernels.add_gated(pool, x.array.data<float>(), gate.array.data<float>(), x.rows, x.columns,
                      out.array.data<float>());
  });
}

inline void gate(PreparedPass& pass, const Activation& gate, Activation& x) {
  expect(gate, "gate", Kind::f32, x.columns);
  if (gate.rows != x.rows) refuse("gate must have a row for each row of x");
  begin(x, pass.act(), x.columns, x.rows);
  pass.run([&](Pool& pool, const RowKernels& kernels) {
    kernels.gate(pool, pass.format(), gate.array.data<float>(), x.rows, x.columns, x.array.data());
  });
}

}  // namespace inflight

#endif
