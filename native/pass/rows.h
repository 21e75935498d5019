// Operations of a pass on numbers one by one or row by row: embeddings, norms, activation functions, sums, gates.
//
// Knows which sizes go together; what is computed is written in norm_rope.h and its like.
#pragma once
#include <cstring>
#include <string>
#include <vector>

#include "pass/arguments.h"
#include "pass/prepared_pass.h"
#include "weights/packed.h"

namespace inflight {

inline void embed(PreparedPass& pass, const Table& table, Activation& out) {
  pass.backend().same_format(table.format);
  const std::int64_t tokens = pass.tokens();
  const auto* ids = pass.token_ids();
  for (std::int64_t t = 0; t < tokens; ++t)
    if (ids[t] < 0 || ids[t] >= table.rows)
      refuse("token id " + std::to_string(ids[t]) + " is outside the table of " + std::to_string(table.rows));
  begin(out, Kind::f32, table.columns, tokens);
  auto* to = out.array.data<float>();
  pass.run([&](Pool& pool, const RowKernels& kernels) {
    if (table.linear) {
      const Piece& piece = table.linear->pieces[0];
      kernels.embed_packed(pool, pass.format(), piece.layout.hold, piece.weights, ids, tokens, to);
    } else if (table.share) {
      const auto* rows = static_cast<const std::int8_t*>(table.memory.data());
      kernels.embed_bytes(pool, rows, table.scales.data(), table.columns, table.share, ids, tokens, to);
    } else {
      kernels.embed_rows(pool, pass.format(), table.memory.data(), table.columns, ids, tokens, to);
    }
  });
}

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

// rows: of the table, one for each token.
inline void add_rows_of(PreparedPass& pass, const Table& table, const std::int32_t* rows, Activation& out) {
  pass.backend().same_format(table.format);
  if (table.linear || table.share) refuse("rows are added of a table that holds plain numbers");
  const std::int64_t tokens = pass.tokens();
  for (std::int64_t t = 0; t < tokens; ++t)
    if (rows[t] < 0 || rows[t] >= table.rows)
      refuse("row " + std::to_string(rows[t]) + " is outside the table of " + std::to_string(table.rows));
  begin(out, Kind::f32, table.columns, tokens);
  pass.run([&](Pool& pool, const RowKernels& kernels) {
    kernels.add_rows_of(pool, pass.format(), table.memory.data(), table.columns, rows, tokens,
                        out.array.data<float>());
  });
}

inline void add_positions(PreparedPass& pass, const Table& table, std::int32_t first, Activation& out) {
  const std::int32_t* positions = pass.metadata().positions;
  std::vector<std::int32_t> rows(positions, positions + pass.tokens());
  for (std::int32_t& row : rows) row += first;
  add_rows_of(pass, table, rows.data(), out);
}

inline void add_token_types(PreparedPass& pass, const Table& table, Activation& out) {
  const std::int32_t* types = pass.token_types();
  const std::vector<std::int32_t> firsts(types ? 0 : pass.tokens(), 0);
  add_rows_of(pass, table, types ? types : firsts.data(), out);
}

// Of the run's ranges.
inline void mean(PreparedPass& pass, const Activation& x, Activation& out) {
  expect(x, "x", Kind::f32, out.columns);
  const std::vector<std::int32_t>&from = pass.inputs().firsts, &to = pass.inputs().ends;
  const auto count = static_cast<std::int64_t>(from.size());
  for (std::int64_t i = 0; i < count; ++i)
    if (from[i] < 0 || from[i] >= to[i] || to[i] > x.rows) refuse("a mean is of one row of x or more");
  begin(out, Kind::f32, x.columns, count);
  pass.run([&](Pool& pool, const RowKernels& kernels) {
    kernels.mean(pool, x.array.data<float>(), from.data(), to.data(), count, x.columns, out.array.data<float>());
  });
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

inline void clear(PreparedPass& pass, Activation& out) {
  begin(out, Kind::f32, out.columns, pass.tokens());
  const TracedCall traced(pass.backend().trace());
  std::memset(out.array.data(), 0, static_cast<std::size_t>(out.rows * out.columns) * sizeof(float));
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

// The run's places.
inline void gather(PreparedPass& pass, const Activation& x, Activation& out) {
  const std::vector<std::int64_t>& places = pass.inputs().places;
  expect(x, "x", Kind::f32, out.columns);
  begin(out, Kind::f32, x.columns, static_cast<std::int64_t>(places.size()));
  const TracedCall traced(pass.backend().trace());
  auto* to = out.array.data<float>();
  for (const std::int64_t place : places) {
    if (place < 0 || place >= x.rows) refuse("there is no row " + std::to_string(place) + " to gather");
    std::memcpy(to, x.array.data<float>() + place * x.columns, x.columns * sizeof(float));
    to += x.columns;
  }
}

}  // namespace inflight
