// Operations of a pass that multiply by packed weights: linears, gate and up, experts, a matrix for each head.
//
// A linear may be of pieces that are held in different ways. Sums are made in gemm/.
#pragma once
#include <string>
#include <vector>

#include "gemm/by_head.h"
#include "gemm/experts.h"
#include "pass/arguments.h"
#include "pass/prepared_pass.h"
#include "weights/packed.h"

namespace inflight {

inline bool is_gated(Epilogue epilogue) {
  return epilogue == Epilogue::gate_up || epilogue == Epilogue::gate_up_gelu || epilogue == Epilogue::gate_up_gelu_erf;
}

// Whether what comes out is held as activations are.
inline bool is_held(Epilogue epilogue) { return epilogue != Epilogue::store && epilogue != Epilogue::residual; }

// added: as of a share.
inline void product_of_rows(Backend& backend, Pool& pool, const RowKernels& kernels, const Linear& linear,
                            Epilogue epilogue, const void* x, std::int64_t rows, const float* const* added, void* out) {
  const std::int64_t item = backend.item(), of_number = is_held(epilogue) ? item : 4;
  const std::vector<std::int32_t>* ordered = nullptr;  // the order that columns lie in beside x
  std::vector<const float*> behind;                    // what is added to a piece behind the first
  for (const Piece& piece : linear.pieces) {
    Share all{&piece.weights, 0, rows, added};
    if (added && piece.first > 0) {
      behind.assign(added, added + rows);
      for (const float*& numbers : behind)
        if (numbers) numbers += piece.first;
      all.added = behind.data();
    }
    const void* from = x;
    if (!piece.order.empty()) {
      void* beside = pool.scratch(2, static_cast<std::size_t>(rows * linear.columns * item));
      if (ordered == nullptr || *ordered != piece.order)
        kernels.gather(pool, x, nullptr, piece.order.data(), rows, linear.columns, item, beside);
      ordered = &piece.order;
      from = beside;
    }
    void* to = static_cast<char*>(out) + piece.first * of_number;
    backend.products(piece.layout.hold).gemm(pool, from, &all, 1, epilogue, to);
  }
}

inline void product(PreparedPass& pass, const Activation& x, const Linear& linear, Epilogue epilogue, Activation& out) {
  const bool gated = is_gated(epilogue), held = is_held(epilogue);
  pass.backend().same_format(linear.format);
  if (linear.gate_up != gated) refuse("weights of gate and up go with gate_up, others with linear");
  expect(x, "x", pass.act(), linear.columns);
  begin(out, held ? pass.act() : Kind::f32, linear.rows, x.rows);
  AddedRows added(pass.backend(), pass.adapted(), linear);
  const std::int64_t item = pass.backend().item(), of_out = linear.rows * (held ? item : 4);
  const std::int64_t most = added.rows_at_once();
  pass.run([&](Pool& pool, const RowKernels& kernels) {
    const auto* from = static_cast<const char*>(x.array.data());
    auto* to = static_cast<char*>(out.array.data());
    if (added.none())
      return product_of_rows(pass.backend(), pool, kernels, linear, epilogue, from, x.rows, nullptr, to);
    for (std::int64_t row = 0; row < x.rows; row += most) {
      const std::int64_t count = std::min(most, x.rows - row);
      const void* rows = from + row * x.columns * item;
      const float* const* numbers = added.of(pool, kernels, rows, row, count);
      product_of_rows(pass.backend(), pool, kernels, linear, epilogue, rows, count, numbers, to + row * of_out);
    }
  });
}

inline void linear(PreparedPass& pass, const Activation& x, const Linear& weight, Activation& out) {
  product(pass, x, weight, Epilogue::store, out);
}

inline void linear_residual(PreparedPass& pass, const Activation& x, const Linear& weight, Activation& out) {
  product(pass, x, weight, Epilogue::residual, out);
}

inline void gate_up(PreparedPass& pass, const Activation& x, const Linear& weight, Activation& out,
                    const std::string& activation) {
  switch (nonlinearity_of(activation)) {
    case Nonlinearity::silu: return product(pass, x, weight, Epilogue::gate_up, out);
    case Nonlinearity::gelu: return product(pass, x, weight, Epilogue::gate_up_gelu, out);
    case Nonlinearity::gelu_erf: return product(pass, x, weight, Epilogue::gate_up_gelu_erf, out);
    default: refuse("gate_up multiplies by silu, gelu or gelu_tanh, not by " + activation);
  }
}

inline void linear_act(PreparedPass& pass, const Activation& x, const Linear& weight, const std::string& activation,
                       Activation& out) {
  switch (nonlinearity_of(activation)) {
    case Nonlinearity::gelu: return product(pass, x, weight, Epilogue::gelu, out);
    case Nonlinearity::gelu_erf: return product(pass, x, weight, Epilogue::gelu_erf, out);
    case Nonlinearity::relu: return product(pass, x, weight, Epilogue::relu, out);
    default: refuse("linear_act applies gelu, gelu_tanh or relu, not " + activation);
  }
}

inline void experts(PreparedPass& pass, const Activation& x, const Activation& logits, const Experts& experts,
                    Activation& out) {
  const Mixture& mixture = experts.mixture;
  const Weights &gate_up = *mixture.gate_up[0], &down = *mixture.down[0];
  pass.backend().same_format(experts.format);
  expect(x, "x", pass.act(), gate_up.columns);
  expect(logits, "logits", Kind::f32, mixture.experts);
  if (logits.rows != x.rows) refuse("logits must have a row for each row of x");
  begin(out, Kind::f32, down.rows, x.rows);
  const std::int64_t item = pass.backend().item();
  const ProductKernels &of_gate_up = pass.backend().products(experts.held[0]->pieces[0].layout.hold),
                       &of_down = pass.backend().products(experts.held[1]->pieces[0].layout.hold);
  pass.run([&](Pool& pool, const RowKernels& kernels) {
    run_experts(pool, kernels, of_gate_up, of_down, item, mixture, experts.orders, x.array.data(),
                logits.array.data<float>(), x.rows, out.array.data<float>());
  });
}

inline void by_head(PreparedPass& pass, const Activation& x, const Heads& weight, Activation& out) {
  const auto heads = static_cast<std::int64_t>(weight.held.size());
  pass.backend().same_format(weight.format);
  expect(x, "x", pass.act(), heads * weight.columns());
  if (out.columns % heads != 0 || out.columns / heads < weight.rows())
    refuse("out must have " + std::to_string(weight.rows()) + " numbers or more for each of " + std::to_string(heads) +
           " heads, and as many for each; it has rows of " + std::to_string(out.columns));
  begin(out, pass.act(), out.columns, x.rows);
  const HeadWeights given{weight.matrices.data(), heads, weight.rows(), weight.columns()};
  const ProductKernels& products = pass.backend().products(weight.held[0]->pieces[0].layout.hold);
  pass.run([&](Pool& pool, const RowKernels& kernels) {
    run_by_head(pool, kernels, products, pass.format(), given, x.array.data(), x.rows, out.columns / heads,
                out.array.data());
  });
}

}  // namespace inflight
