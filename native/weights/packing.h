// A checkpoint's matrices as Python gives them → packed weights: which forms there are, and which go together. pack.h
// writes the bytes.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pass/array.h"
#include "pass/backend.h"
#include "types.h"
#include "weights/packed.h"

namespace inflight {

inline Layout layout_of(nb::handle hold, nb::handle group, nb::handle offsets, nb::handle mixed, nb::handle meanings) {
  const auto name = nb::cast<std::string>(hold);
  if (name == "act") return {Hold::act, {}};
  if (name != "int8" && name != "int4") refuse("matrices are held as act, int8 or int4, not as " + name);
  const auto n = nb::cast<std::int64_t>(group);
  if (n != 16 && n != 32 && n != 64 && n != max_group)
    refuse("in " + name + " 16, 32, 64 or 128 inputs share a scale, not " + std::to_string(n));
  const std::int64_t inputs = n < max_span ? n : max_span;
  const Hold held = name == "int8" ? Hold::int8 : Hold::int4;
  Layout layout{held, {inputs, nb::cast<bool>(offsets), nb::cast<bool>(mixed), {}}, n / inputs};
  if (layout.spans.mixed && (held != Hold::int8 || n != max_span)) refuse("inputs are mixed in int8, by groups of 32");
  const Array table(meanings, "the values that codes stand for", Kind::i8, {16});
  for (int i = 0; i < 16; ++i) layout.spans.meanings[i] = static_cast<std::uint8_t>(table.data<std::int8_t>()[i] + 128);
  return layout;
}

// The type of blocks that GGUF calls so.
inline SourceMatrix::Blocks blocks_of(const std::string& name) {
  constexpr std::pair<const char*, SourceMatrix::Blocks> types[] = {
      {"Q4_0", {BlockType::q4_0, 32, 18}},       {"Q4_1", {BlockType::q4_1, 32, 20}},
      {"Q4_K", {BlockType::q4_k, 256, 144}},     {"IQ4_NL", {BlockType::iq4_nl, 32, 18}},
      {"IQ4_XS", {BlockType::iq4_xs, 256, 136}}, {"MXFP4", {BlockType::mxfp4, 32, 17}},
      {"Q5_0", {BlockType::q5_0, 32, 22}},       {"Q5_1", {BlockType::q5_1, 32, 24}},
      {"Q8_0", {BlockType::q8_0, 32, 34}},       {"Q5_K", {BlockType::q5_k, 256, 176}},
      {"Q6_K", {BlockType::q6_k, 256, 210}}};
  for (const auto& [known, blocks] : types)
    if (name == known) return blocks;
  refuse("there are no blocks of the type " + name);
}

// A matrix of a checkpoint: plain numbers, or (codes, scales, offsets or None, factors), or
// (name of the type, rows of blocks, columns, pages of a file's map or None).
struct PartSource {
  std::vector<Array> arrays;
  SourceMatrix matrix{};
  std::int64_t columns = 0;
  std::vector<Array> pages;  // one or none: of a file's map, to be given back

  // Without a layout: rows that are only copied.
  explicit PartSource(nb::handle given) {
    if (nb::isinstance<nb::tuple>(given)) {
      take_blocks(nb::cast<nb::tuple>(given));
    } else {
      take_plain(given);
    }
  }

  PartSource(nb::handle given, const Layout& layout) {
    if (!nb::isinstance<nb::tuple>(given)) {
      if (layout.hold == Hold::int4 && !layout.spans.offsets) refuse("plain numbers become int4 with offsets");
      take_plain(given);
      return;
    }
    if (layout.spans.mixed) refuse("inputs are mixed of plain numbers only");
    const auto parts = nb::cast<nb::tuple>(given);
    if (nb::isinstance<nb::str>(parts[0])) {
      take_blocks(parts);
      const BlockType type = matrix.blocks.type;
      const bool fits = layout.hold == (has_codes(type) ? Hold::int4 : Hold::int8) &&
                        layout.group_spans == 1 && layout.spans.inputs == group_inputs(type) &&
                        layout.spans.offsets == has_offsets(type);
      if (!fits) refuse("blocks go with their own layout");
      return;
    }
    if (nb::len(parts) != 4 || layout.hold == Hold::act) refuse("a quantized matrix goes with its own layout");
    arrays.emplace_back(parts[0], "a weight matrix", Kind::u8, std::initializer_list<std::int64_t>{any, any});
    const std::int64_t rows = arrays[0].size(0);
    columns = arrays[0].size(1);
    matrix = {arrays[0].data(), rows, Source::codes, nullptr, nullptr, nullptr, {}};
    arrays.emplace_back(parts[3], "scales of outputs", Kind::f32, std::initializer_list<std::int64_t>{rows});
    matrix.factors = arrays[1].data<float>();
    const std::int64_t group = layout.spans.inputs * layout.group_spans, groups = (columns + group - 1) / group;
    arrays.emplace_back(parts[1], "scales of groups", Kind::f16, std::initializer_list<std::int64_t>{rows, groups});
    matrix.group_scales = arrays[2].data<std::uint16_t>();
    if (parts[2].is_none() != !layout.spans.offsets) refuse("a matrix with offsets goes with a layout that has them");
    if (!layout.spans.offsets) return;
    arrays.emplace_back(parts[2], "offsets of groups", Kind::f16, std::initializer_list<std::int64_t>{rows, groups});
    matrix.group_offsets = arrays[3].data<std::uint16_t>();
  }

  // When it has been packed: what is asked for again comes from the file again.
  void release() const {
    for (const Array& one : pages) give_back(one.data(), static_cast<std::size_t>(one.nbytes()));
  }

 private:
  void take_plain(nb::handle given) {
    arrays.emplace_back(given, "a weight matrix");
    matrix = arrays[0].matrix();
    columns = arrays[0].size(1);
  }

  void take_blocks(const nb::tuple& parts) {
    if (nb::len(parts) != 4)
      refuse("a matrix of blocks is the name of their type, their rows, its columns and their pages or None");
    const SourceMatrix::Blocks blocks = blocks_of(nb::cast<std::string>(parts[0]));
    columns = nb::cast<std::int64_t>(parts[2]);
    if (columns < 1 || columns % blocks.values != 0)
      refuse("rows of " + std::to_string(columns) + " values are no blocks of " + std::to_string(blocks.values));
    arrays.emplace_back(parts[1], "rows of blocks", Kind::u8,
                        std::initializer_list<std::int64_t>{any, columns / blocks.values * blocks.nbytes});
    matrix = {arrays[0].data(), arrays[0].size(0), Source::blocks, nullptr, nullptr, nullptr, blocks};
    if (parts[3].is_none()) return;
    pages.emplace_back(parts[3], "pages of a file", Kind::u8, std::initializer_list<std::int64_t>{any});
    if (!pages[0].readonly()) refuse("pages that are given back must be those of a file, which are never written");
  }
};

// What a piece is made of.
struct PieceSources {
  std::vector<PartSource> held;
  std::vector<SourceMatrix> parts;

  // Blocks lie in a file, or take a fraction of a layer, and so do small matrices; other sources should be let go
  // before the next is read.
  bool can_wait() const {
    return nbytes() <= small ||
           std::all_of(parts.begin(), parts.end(), [](const auto& one) { return one.kind == Source::blocks; });
  }
  std::size_t nbytes() const {
    std::size_t bytes = 0;
    for (const PartSource& one : held) bytes += static_cast<std::size_t>(one.arrays[0].nbytes());
    return bytes;
  }

 private:
  static constexpr std::size_t small = 512u << 10;
};

// Steps, groups and memory of a piece whose rows and columns are known.
inline void shape(const Backend& backend, WeightArena& arena, Piece& piece) {
  Weights& w = piece.weights;
  const Hold hold = piece.layout.hold;
  w.spans = piece.layout.spans;
  w.group_spans = piece.layout.group_spans;
  const bool spans = hold != Hold::act;
  const std::int64_t inputs = spans ? w.spans.inputs : per_step(backend.format());
  w.steps = (w.columns + inputs - 1) / inputs;
  w.step_lanes = spans ? w.spans.first_codes() + inputs / (hold == Hold::int4 ? 8 : 4) * group_lanes : group_lanes;
  w.groups = ((w.gate_up ? 2 : 1) * ((w.rows + panel - 1) / panel * panel) + group_lanes - 1) / group_lanes;
  piece.memory = arena.take(static_cast<std::size_t>(w.groups * w.steps * w.step_lanes * 4));
  w.data = static_cast<std::uint32_t*>(piece.memory.data());
  if (spans) piece.factors.resize(static_cast<std::size_t>(w.groups * group_lanes));
  w.factors = spans ? piece.factors.data() : nullptr;
}

// One more piece of a matrix; later, in the order of calls, if it may be.
inline void pack(Backend& backend, WeightArena& arena, const std::shared_ptr<Linear>& linear, const nb::tuple& given,
                 bool may_wait = true) {
  if (nb::len(given) != 7) refuse("a piece is its matrices, their layout and their order");
  Piece piece{layout_of(given[1], given[2], given[3], given[4], given[5]), {}, {}, {}, {}, linear->rows};
  auto sources = std::make_shared<PieceSources>();
  auto& [held, parts] = *sources;
  for (nb::handle part : given[0]) {
    held.emplace_back(part, piece.layout);
    parts.push_back(held.back().matrix);
    if (held.back().columns != (linear->pieces.empty() ? held[0].columns : linear->columns))
      refuse("stacked weight matrices must have equal columns");
    piece.weights.rows += parts.back().rows;
  }
  if (parts.empty()) refuse("a linear needs at least one weight matrix");
  Weights& w = piece.weights;
  w.columns = linear->columns = held[0].columns;
  if (!given[6].is_none()) {
    const Array order(given[6], "the order of inputs", Kind::i32, {w.columns});
    piece.order.assign(order.data<std::int32_t>(), order.data<std::int32_t>() + w.columns);
    for (const std::int32_t column : piece.order)
      if (column < 0 || column >= w.columns) refuse("the order of inputs must name columns");
  }
  w.gate_up = linear->gate_up;
  if (w.gate_up) {
    if (parts.size() != 2 || parts[0].rows != parts[1].rows) refuse("gate and up must have equal shapes");
    w.rows = parts[0].rows;
  }
  shape(backend, arena, piece);
  w.out_stride = w.rows;
  const auto work = [linear, weights = w, hold = piece.layout.hold, format = backend.format(),
                     from = sources.get()](Pool& pool, const RowKernels& kernels) {
    kernels.pack(pool, format, hold, from->parts.data(), weights);
    for (const PartSource& one : from->held) one.release();
  };
  const std::size_t bytes = sources->nbytes();
  linear->rows += w.rows;
  linear->pieces.push_back(std::move(piece));
  if (may_wait && sources->can_wait()) {
    backend.run_later(work, std::move(sources), bytes);
  } else {
    backend.run(work);
  }
}

// pieces: (matrices, hold, span, offsets, mixed, meanings, order) each, stacked along the outputs. may_wait: packed
// later.
inline std::shared_ptr<Linear> pack_linear(Backend& backend, WeightArena& arena, nb::list pieces, nb::handle bias,
                                           bool may_wait) {
  auto linear = std::make_shared<Linear>();
  linear->format = backend.format();
  for (nb::handle given : pieces) pack(backend, arena, linear, nb::cast<nb::tuple>(given), may_wait);
  if (linear->pieces.empty()) refuse("a linear needs at least one weight matrix");
  if (!bias.is_none()) {
    Array values(bias, "bias", Kind::f32, {linear->rows});
    linear->bias.assign(values.data<float>(), values.data<float>() + linear->rows);
  }
  for (Piece& piece : linear->pieces) {
    piece.weights.out_stride = linear->rows;
    piece.weights.bias = bias.is_none() ? nullptr : linear->bias.data() + piece.first;
  }
  return linear;
}

inline std::shared_ptr<Linear> pack_linear(Backend& backend, nb::list pieces, nb::handle bias) {
  return pack_linear(backend, backend.weight_arena(), pieces, bias, true);
}

// A piece of two matrices. bias: [2][rows], of gate and of up.
inline std::shared_ptr<Linear> pack_gate_up(Backend& backend, nb::tuple piece, nb::handle bias) {
  auto linear = std::make_shared<Linear>();
  linear->format = backend.format();
  linear->gate_up = true;
  pack(backend, backend.weight_arena(), linear, piece);
  if (!bias.is_none()) {
    const Array values(bias, "bias", Kind::f32, {2, linear->rows});
    Weights& w = linear->pieces[0].weights;
    const std::int64_t padded = w.groups * panel;
    linear->bias.assign(static_cast<std::size_t>(2 * padded), 0.0f);
    for (std::int64_t half = 0; half < 2; ++half)
      std::memcpy(linear->bias.data() + half * padded, values.data<float>() + half * linear->rows,
                  linear->rows * sizeof(float));
    w.bias = linear->bias.data();
  }
  return linear;
}

// Of each piece its packed weights and its factors, as bytes, to be compared.
inline nb::list contents(Backend& backend, const Linear& linear) {
  backend.finish_packing();
  nb::list found;
  for (const Piece& piece : linear.pieces) {
    found.append(nb::bytes(static_cast<const char*>(piece.memory.data()), piece.memory.bytes()));
    found.append(nb::bytes(reinterpret_cast<const char*>(piece.factors.data()), piece.factors.size() * sizeof(float)));
  }
  return found;
}

// Experts' matrices and orders, two matrices each that fit together and are packed as the first one's.
inline void keep_matrices(const Backend& backend, Experts& experts, const std::vector<std::shared_ptr<Linear>>& gate_up,
                          const std::vector<std::shared_ptr<Linear>>& down) {
  for (std::size_t e = 0; e < gate_up.size(); ++e) {
    backend.same_format(gate_up[e]->format), backend.same_format(down[e]->format);
    if (gate_up[e]->pieces.size() != 1 || down[e]->pieces.size() != 1)
      refuse("an expert's matrices must be of one piece");
    const Weights &in = gate_up[e]->pieces[0].weights, &out = down[e]->pieces[0].weights,
                  &first = gate_up[0]->pieces[0].weights;
    if (!in.gate_up || out.gate_up || in.rows != out.columns || in.columns != out.rows || in.rows != first.rows ||
        in.columns != first.columns || !alike(gate_up[e]->pieces[0].layout, gate_up[0]->pieces[0].layout) ||
        !alike(down[e]->pieces[0].layout, down[0]->pieces[0].layout))
      refuse("experts must have equal shapes, held alike: gate and up [F, E], down [E, F]");
    experts.held.push_back(gate_up[e]), experts.held.push_back(down[e]);
    experts.gate_up.push_back(&in), experts.down.push_back(&out);
    experts.orders.gate_up.push_back(gate_up[e]->pieces[0].order_or_null());
    experts.orders.down.push_back(down[e]->pieces[0].order_or_null());
  }
  for (auto* orders : {&experts.orders.gate_up, &experts.orders.down})
    if (std::none_of(orders->begin(), orders->end(), [](const auto* order) { return order != nullptr; }))
      orders->clear();
}

inline Epilogue gating_of(const std::string& name) {
  if (name == "silu") return Epilogue::gate_up;
  if (name == "gelu_tanh") return Epilogue::gate_up_gelu;
  if (name == "clamped_swiglu") return Epilogue::gate_up_clamped;
  refuse("experts are gated by silu, gelu_tanh or clamped_swiglu, not by " + name);
}

inline ExpertScores scores_of(const std::string& name) {
  if (name == "softmax") return ExpertScores::softmax;
  if (name == "sigmoid") return ExpertScores::sigmoid;
  if (name == "sparsemixer") return ExpertScores::sparsemixer;
  refuse("experts are scored by softmax, sigmoid or sparsemixer, not by " + name);
}

inline std::shared_ptr<Experts> pack_experts(const Backend& backend,
                                             const std::vector<std::shared_ptr<Linear>>& gate_up,
                                             const std::vector<std::shared_ptr<Linear>>& down, std::int64_t top_k,
                                             const std::string& scores, bool renormalize, float sum_offset,
                                             float jitter, nb::handle correction, std::int64_t groups,
                                             std::int64_t top_groups, std::int64_t group_best, float scale,
                                             nb::handle expert_scale, const std::string& gating) {
  const auto count = static_cast<std::int64_t>(gate_up.size());
  if (count < 1 || down.size() != gate_up.size()) refuse("experts need matrices of gate and up, and of down, for each");
  if (groups < 1 || count % groups != 0 || top_groups < 1 || top_groups > groups || top_k < 1 ||
      top_k > count / groups * top_groups ||
      (groups > 1 && (group_best < 1 || group_best > 8 || group_best > count / groups)))
    refuse(std::to_string(top_k) + " of " + std::to_string(count) + " experts in " + std::to_string(groups) +
           " groups cannot be picked so");
  auto experts = std::make_shared<Experts>();
  experts->format = backend.format();
  keep_matrices(backend, *experts, gate_up, down);
  const auto of_each = [&](nb::handle given, const char* name, std::vector<float>& to) -> const float* {
    if (given.is_none()) return nullptr;
    const Array values(given, name, Kind::f32, {count});
    to.assign(values.data<float>(), values.data<float>() + count);
    return to.data();
  };
  const float* added = of_each(correction, "correction", experts->correction);
  const float* factors = of_each(expert_scale, "expert_scale", experts->expert_scale);
  experts->mixture = {experts->gate_up.data(), experts->down.data(), count, top_k, groups, top_groups, group_best,
                      scores_of(scores), renormalize, added, factors, scale, sum_offset, jitter, gating_of(gating)};
  return experts;
}

inline std::shared_ptr<Heads> pack_heads(const Backend& backend, const std::vector<std::shared_ptr<Linear>>& weights) {
  if (weights.empty()) refuse("heads need a matrix each");
  auto heads = std::make_shared<Heads>();
  heads->format = backend.format();
  for (const auto& one : weights) {
    backend.same_format(one->format);
    if (one->gate_up || one->pieces.size() != 1 || !one->bias.empty() || one->rows != weights[0]->rows ||
        one->columns != weights[0]->columns || !alike(one->pieces[0].layout, weights[0]->pieces[0].layout))
      refuse("the matrices of heads must have equal shapes, held alike in one piece, and no biases");
    if (one->pieces[0].order_or_null()) refuse("the inputs of heads cannot be out of order");
    heads->held.push_back(one), heads->matrices.push_back(&one->pieces[0].weights);
  }
  return heads;
}

// A tied table is a linear of one piece, and a piece of one matrix.
inline std::shared_ptr<Table> pack_table(Backend& backend, nb::object table) {
  auto packed = std::make_shared<Table>();
  packed->format = backend.format();
  nb::list pieces;
  pieces.append(table);
  packed->linear = pack_linear(backend, pieces, nb::none());
  if (packed->linear->pieces[0].order_or_null()) refuse("a table's columns cannot be out of order");
  packed->rows = packed->linear->rows, packed->columns = packed->linear->columns;
  return packed;
}

// An untied one is held plain, of pieces that follow one another along its rows, plain ones or blocks. share: columns
// of a row that get one scale, where they are held as bytes; 0 where rows are held as they are.
inline std::shared_ptr<Table> pack_rows(Backend& backend, nb::iterable pieces, std::int64_t table_rows,
                                        std::int64_t columns, std::int64_t share) {
  if (table_rows < 1 || columns < 1) refuse("a table has rows and columns");
  if (share < 0 || (share && columns % share != 0))
    refuse("rows of " + std::to_string(columns) + " columns have no equal shares of " + std::to_string(share));
  auto packed = std::make_shared<Table>();
  packed->format = backend.format(), packed->rows = table_rows, packed->columns = columns, packed->share = share;
  const std::int64_t item = share ? 1 : backend.item(), shares = share ? columns / share : 0;
  packed->memory = Memory(static_cast<std::size_t>(table_rows * columns * item));
  packed->scales.resize(static_cast<std::size_t>(table_rows * shares));
  std::int64_t filled = 0;
  for (nb::handle piece : pieces) {
    const PartSource source(piece);
    const SourceMatrix& matrix = source.matrix;
    if (source.columns != columns || matrix.rows > table_rows - filled)
      refuse("the pieces of a table do not make " + std::to_string(table_rows) + " rows of " + std::to_string(columns));
    if (share && matrix.kind == Source::blocks && share % matrix.blocks.values != 0)
      refuse("a share of " + std::to_string(share) + " columns is no blocks of " +
             std::to_string(matrix.blocks.values));
    auto* to = static_cast<char*>(packed->memory.data()) + filled * columns * item;
    backend.run([&](Pool& pool, const RowKernels& kernels) {
      if (share) {
        float* scales = packed->scales.data() + filled * shares;
        kernels.copy_bytes(pool, matrix, columns, share, reinterpret_cast<std::int8_t*>(to), scales);
      } else {
        kernels.copy_rows(pool, backend.format(), matrix, columns, to);
      }
    });
    filled += matrix.rows;
  }
  if (filled != table_rows) refuse("the pieces of a table are " + std::to_string(filled) + " of its rows");
  return packed;
}

}  // namespace inflight
