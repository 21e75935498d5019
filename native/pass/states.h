// Operations of a pass on states of recurrent layers: short convolutions and the gated delta rule (recurrence.h).
#pragma once
#include "pass/arguments.h"
#include "pass/prepared_pass.h"

namespace inflight {

inline Convolution convolution(const StateView& view, const Vector& weight, const Vector* bias) {
  const std::int64_t channels = view.layer.channels, kernel = view.layer.inputs + 1;
  if (channels < 1 || weight.array.size(0) != channels * kernel || (bias != nullptr && bias->array.size(0) != channels))
    refuse("a convolution needs a weight for each channel of each input that it sees");
  return {numbers(&weight), numbers(bias), channels, kernel};
}

inline void convolve(PreparedPass& pass, const Activation& x, std::int64_t layer, const Vector& weight,
                     Activation& out) {
  const StateView view = pass.state_of(layer);
  const Convolution given = convolution(view, weight, nullptr);
  if (x.kind != Kind::f32 || x.columns < given.channels || x.rows != pass.tokens())
    refuse("x must hold a row of float32 for each token, with all inputs of the convolution");
  begin(out, Kind::f32, given.channels, x.rows);
  pass.run([&](Pool& pool, const RowKernels& kernels) {
    kernels.convolve(pool, pass.format(), view, pass.metadata(), given, x.array.data<float>(), x.columns,
                     out.array.data<float>());
  });
}

inline void convolve_gated(PreparedPass& pass, const Activation& x, std::int64_t layer, const Vector& weight,
                           const Vector* bias, Activation& out) {
  const StateView view = pass.state_of(layer);
  const Convolution given = convolution(view, weight, bias);
  expect(x, "x", Kind::f32, 3 * given.channels);
  if (x.rows != pass.tokens()) refuse("x must have a row for each token");
  begin(out, pass.act(), given.channels, x.rows);
  pass.run([&](Pool& pool, const RowKernels& kernels) {
    kernels.convolve_gated(pool, pass.format(), view, pass.metadata(), given, x.array.data<float>(), out.array.data());
  });
}

inline void delta_rule(PreparedPass& pass, const Activation& qkv, const Activation& projected, const Activation& gates,
                       std::int64_t layer, std::int64_t key_heads, const Vector& decay, const Vector& step_bias,
                       const Vector& norm, float eps, Activation& out) {
  const StateView view = pass.state_of(layer);
  const LayerState& state = view.layer;
  const std::int64_t tokens = pass.tokens(), inner = state.heads * state.value_dim;
  if (key_heads < 1 || state.heads < 1 || state.heads % key_heads != 0 ||
      state.channels != 2 * key_heads * state.key_dim + inner)
    refuse("the delta rule needs a state of heads over queries, keys and values, as many heads to each of keys");
  expect(qkv, "qkv", Kind::f32, state.channels);
  expect(projected, "projected", Kind::f32, state.channels + inner);
  expect(gates, "gates", Kind::f32, 2 * state.heads);
  if (qkv.rows != tokens || projected.rows != tokens || gates.rows != tokens)
    refuse("there must be a row for each token");
  if (decay.array.size(0) != state.heads || step_bias.array.size(0) != state.heads ||
      norm.array.size(0) != state.value_dim)
    refuse("decay and step_bias must have a number for each head, norm one for each of a head's values");
  begin(out, pass.act(), inner, tokens);
  const DeltaRule rule{key_heads, numbers(&decay), numbers(&step_bias), numbers(&norm), eps};
  pass.run([&](Pool& pool, const RowKernels& kernels) {
    kernels.delta_rule(pool, pass.format(), view, pass.metadata(), rule, qkv.array.data<float>(),
                       projected.array.data<float>() + state.channels, projected.columns, gates.array.data<float>(),
                       out.array.data());
  });
}

}  // namespace inflight
