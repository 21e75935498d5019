// The Python face of the kernels.
//
// Knows numpy arrays (array.h) and checks everything about them once: weights and activations when they are made, the
// tokens, positions and block tables of a pass when it is prepared, so that a call in a layer only compares sizes. Kernels
// trust their arguments, and a wrong shape must end as a ValueError with a sentence, never as a crash. The interpreter
// lock is released while kernels run. Knows nothing of what the kernels compute.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "array.h"
#include "by_head.h"
#include "experts.h"
#include "memory.h"
#include "pool.h"
#include "types.h"

namespace inflight {
namespace {

// An array for each of n rows, or none.
template <class T>
class OptionalRows {
 public:
  OptionalRows(nb::sequence rows, std::int64_t n, const char* name, Kind kind, std::int64_t size)
      : held_(static_cast<std::size_t>(n)), pointers_(held_.size(), nullptr), lengths_(held_.size(), 0) {
    if (static_cast<std::int64_t>(nb::len(rows)) != n) refuse(std::string(name) + " must have one entry per row");
    std::size_t row = 0;
    for (nb::handle one : rows) {
      if (!one.is_none()) {
        held_[row].emplace(one, name, kind, std::initializer_list<std::int64_t>{size});
        pointers_[row] = held_[row]->template data<T>();
        lengths_[row] = held_[row]->size(0);
      }
      ++row;
    }
  }
  const T* const* data() const { return pointers_.data(); }
  const std::int64_t* lengths() const { return lengths_.data(); }

 private:
  std::vector<std::optional<Array>> held_;
  std::vector<const T*> pointers_;
  std::vector<std::int64_t> lengths_;
};

// How a matrix is packed.
struct Layout {
  Hold hold = Hold::act;
  Weights::Spans spans{};
};

// Whether rows of x that are laid out for one go with the other.
bool alike(const Layout& a, const Layout& b) {
  return a.hold == b.hold && a.spans.inputs == b.spans.inputs &&
         std::equal(a.spans.meanings, a.spans.meanings + 16, b.spans.meanings);
}

Layout layout_of(nb::handle hold, nb::handle span, nb::handle offsets, nb::handle meanings) {
  const auto name = nb::cast<std::string>(hold);
  if (name == "act" || name == "int8") return {name == "act" ? Hold::act : Hold::int8, {}};
  if (name != "int4") refuse("matrices are held as act, int8 or int4, not as " + name);
  Layout layout{Hold::int4, {nb::cast<std::int64_t>(span), nb::cast<bool>(offsets), {}}};
  if (const std::int64_t n = layout.spans.inputs; n != 16 && n != 32 && n != 64 && n != 128)
    refuse("in int4 16, 32, 64 or 128 inputs share a scale, not " + std::to_string(n));
  const Array table(meanings, "what codes stand for", Kind::i8, {16});
  for (int i = 0; i < 16; ++i) layout.spans.meanings[i] = static_cast<std::uint8_t>(table.data<std::int8_t>()[i] + 128);
  return layout;
}

// Outputs of a matrix that stand side by side and are packed alike.
struct Piece {
  Layout layout;
  Weights weights{};
  Memory memory;
  std::vector<float> scales;
  std::vector<std::int32_t> order;  // in which it wants x's columns; empty: as they are
  std::int64_t first = 0;           // of its outputs, among the matrix's
  const std::int32_t* order_or_null() const { return order.empty() ? nullptr : order.data(); }
};

// Packed weights and what they own.
struct Linear {
  std::vector<Piece> pieces;
  std::int64_t rows = 0, columns = 0;
  bool gate_up = false;
  Format format{};
  std::vector<float> bias;
  std::int64_t nbytes() const {
    std::size_t bytes = bias.size() * sizeof(float);
    for (const Piece& piece : pieces)
      bytes += piece.memory.bytes() + (piece.scales.size() + piece.order.size()) * 4;
    return static_cast<std::int64_t>(bytes);
  }
};

// A matrix of a checkpoint: plain numbers, or (values, scales) of int8, or (codes, scales, offsets or None, factors).
struct PartSource {
  std::vector<Array> arrays;
  SourceMatrix matrix{};
  std::int64_t columns = 0;

  PartSource(nb::handle given, const Layout& layout) {
    if (!nb::isinstance<nb::tuple>(given)) {
      arrays.emplace_back(given, "a weight matrix");
      matrix = arrays[0].matrix();
      columns = arrays[0].size(1);
      return;
    }
    const auto parts = nb::cast<nb::tuple>(given);
    const bool bytes = layout.hold == Hold::int8;
    if (nb::len(parts) != (bytes ? 2 : 4) || layout.hold == Hold::act) refuse("a quantized matrix goes with its own layout");
    arrays.emplace_back(parts[0], "a weight matrix", bytes ? Kind::i8 : Kind::u8, std::initializer_list<std::int64_t>{any, any});
    const std::int64_t rows = arrays[0].size(0);
    columns = arrays[0].size(1);
    matrix = {arrays[0].data(), rows, bytes ? Source::i8 : Source::codes, nullptr, nullptr, nullptr};
    arrays.emplace_back(parts[bytes ? 1 : 3], "scales of outputs", Kind::f32, std::initializer_list<std::int64_t>{rows});
    matrix.scales = arrays[1].data<float>();
    if (bytes) return;
    const std::int64_t spans = (columns + layout.spans.inputs - 1) / layout.spans.inputs;
    arrays.emplace_back(parts[1], "scales of groups", Kind::f16, std::initializer_list<std::int64_t>{rows, spans});
    matrix.span_scales = arrays[2].data<std::uint16_t>();
    if (parts[2].is_none() != !layout.spans.offsets) refuse("a matrix with offsets goes with a layout that has them");
    if (!layout.spans.offsets) return;
    arrays.emplace_back(parts[2], "offsets of groups", Kind::f16, std::initializer_list<std::int64_t>{rows, spans});
    matrix.span_offsets = arrays[3].data<std::uint16_t>();
  }
};

// Experts keep their matrices alive.
struct Experts {
  std::vector<std::shared_ptr<Linear>> held;
  std::vector<const Weights*> gate_up, down;
  ExpertOrders orders;
  std::vector<float> correction, expert_scale;
  Mixture mixture{};
  Format format{};
};

// A matrix for each head; keeps them alive.
struct Heads {
  std::vector<std::shared_ptr<Linear>> held;
  std::vector<const Weights*> matrices;
  Format format{};
  std::int64_t rows() const { return held[0]->rows; }
  std::int64_t columns() const { return held[0]->columns; }
  std::int64_t nbytes() const {
    std::int64_t bytes = 0;
    for (const auto& one : held) bytes += one->nbytes();
    return bytes;
  }
};

struct Table {
  std::int64_t rows = 0, columns = 0;
  Format format{};
  std::shared_ptr<Linear> linear;  // tied
  Memory memory;                   // untied: the rows as they are
  std::int64_t nbytes() const { return linear ? linear->nbytes() : static_cast<std::int64_t>(memory.bytes()); }
};

constexpr std::int64_t most_int8_columns = 0x7fffffff / (127 * 127);

std::int64_t per_step(Format format) { return format == Format::bf16 ? 2 : 1; }

// A layer's place in a block, but for where it is.
KVLayer kv_layer_of(std::int64_t kv_heads, std::int64_t key_dim, std::int64_t value_dim, std::int64_t block_size,
                    Format format, bool bytes) {
  const auto is_width = [](std::int64_t dim) { return dim >= 0 && dim % 2 == 0 && dim <= most_head_dim; };
  if (kv_heads < 1 || block_size < 16 || block_size % 16 != 0 || key_dim < 2 || !is_width(key_dim) ||
      !is_width(value_dim))
    refuse("a KV shape needs heads, a block size that is a multiple of 16, and even head dimensions of at most " +
           std::to_string(most_head_dim));
  KVLayer layer{};
  layer.block_size = block_size, layer.kv_heads = kv_heads, layer.bytes = bytes;
  layer.key_dim = key_dim, layer.value_dim = value_dim;
  layer.padded_dim = (value_dim + panel - 1) / panel * panel;
  const std::int64_t values = bytes ? 4 : per_step(format);
  layer.key_lanes = (key_dim + values - 1) / values * block_size;
  layer.scales_at = layer.key_lanes + block_size / values * layer.padded_dim;
  layer.head_lanes = layer.scales_at + (bytes ? (value_dim > 0 ? 2 : 1) * block_size : 0);
  return layer;
}

// Of each layer of the model its place in a block of its group, one after the other; one without heads takes none. A block
// is as large as its largest group's layers together.
struct KVLayout {
  std::vector<KVLayer> layers;
  std::vector<std::int64_t> groups, offsets;  // of each layer; in lanes
  std::int64_t group_count = 1, block_lanes = 0;

  KVLayout(std::int64_t block_size, bool bytes, const std::vector<std::array<std::int64_t, 4>>& kept, Format format) {
    std::vector<std::int64_t> ends;  // of each group's layers
    for (const auto& [group, kv_heads, key_dim, value_dim] : kept) {
      layers.push_back(kv_heads ? kv_layer_of(kv_heads, key_dim, value_dim, block_size, format, bytes) : KVLayer{});
      if (group < 0 || group >= static_cast<std::int64_t>(kept.size()))
        refuse("there is no group " + std::to_string(group) + " of " + std::to_string(kept.size()) + " layers");
      ends.resize(std::max(ends.size(), static_cast<std::size_t>(group) + 1));
      groups.push_back(group), offsets.push_back(ends[group]);
      ends[group] += kv_heads * layers.back().head_lanes;
    }
    if (!ends.empty()) group_count = static_cast<std::int64_t>(ends.size()), block_lanes = *std::ranges::max_element(ends);
    if (block_lanes == 0) refuse("a KV cache needs a layer that keeps keys");
  }
};

struct KVCacheMemory {
  KVLayout layout;
  std::int64_t blocks, block_size;
  Format format;
  bool bytes;  // int8
  Memory memory;
  std::uint32_t* data() const { return static_cast<std::uint32_t*>(memory.data()); }
};

// States of recurrent layers, and which of the model's layers have one (the others keep nothing here).
struct StateCacheMemory {
  StateCache cache{};
  std::vector<LayerState> layers;
  Memory memory;
  Format format{};
};

// layers: (inputs, channels, heads, key_dim, value_dim) each. Sections begin on cache lines.
std::int64_t lay_out_state(std::vector<LayerState>& layers, const std::vector<std::vector<std::int64_t>>& given, Format format) {
  constexpr std::int64_t line = 64;
  const auto lined = [](std::int64_t bytes) { return (bytes + line - 1) / line * line; };
  std::int64_t at = 0;
  for (const auto& one : given) {
    if (one.size() != 5 || *std::min_element(one.begin(), one.end()) < 0 || one[0] >= most_kernel)
      refuse("a layer's state is five sizes, of which the first, inputs that are kept, is below " + std::to_string(most_kernel));
    LayerState layer{one[0], one[1], one[2], one[3], one[4], (one[3] + 3) / 4 * 4, (one[4] + panel - 1) / panel * panel, 0, 0};
    layer.inputs_at = at;
    at += lined(layer.inputs * layer.channels * (format == Format::bf16 ? 2 : 4));
    layer.matrices_at = at;
    at += lined(layer.heads * layer.padded_keys * layer.padded_values * 4);
    layers.push_back(layer);
  }
  return at;
}

// Which states the chunks of a pass go on with, and what is copied of them.
struct StateArrays {
  Array rows, snapshot_start, positions, slots;
  StateMetadata all;

  StateArrays(const StateCacheMemory& held, const AttentionMetadata& pass, nb::handle rows_, nb::handle snapshot_start_,
              nb::handle positions_, nb::handle slots_)
      : rows(rows_, "state rows", Kind::i32, {pass.chunks}),
        snapshot_start(snapshot_start_, "snapshot_start", Kind::i32, {pass.chunks + 1}),
        positions(positions_, "snapshot positions", Kind::i32, {any}),
        slots(slots_, "snapshot slots", Kind::i32, {positions.size(0)}) {
    all = {rows.data<std::int32_t>(), snapshot_start.data<std::int32_t>(), positions.data<std::int32_t>(),
           slots.data<std::int32_t>()};
    if (all.snapshot_start[0] != 0 || all.snapshot_start[pass.chunks] != positions.size(0))
      refuse("snapshot_start must begin with 0 and end with the number of snapshots");
    for (std::int64_t c = 0; c < pass.chunks; ++c) {
      if (all.rows[c] < 0 || all.rows[c] >= held.cache.rows)
        refuse("there is no state of row " + std::to_string(all.rows[c]) + "; there are " + std::to_string(held.cache.rows));
      if (all.snapshot_start[c] > all.snapshot_start[c + 1]) refuse("snapshot_start must ascend");
      std::int64_t past = pass.context_len[c];
      const std::int64_t end = past + pass.query_start[c + 1] - pass.query_start[c];
      for (std::int64_t i = all.snapshot_start[c]; i < all.snapshot_start[c + 1]; past = all.positions[i++])
        if (all.positions[i] <= past || all.positions[i] > end || all.slots[i] < 0 || all.slots[i] >= held.cache.snapshots)
          refuse("a snapshot of position " + std::to_string(all.positions[i]) + " in slot " + std::to_string(all.slots[i]) +
                 " cannot be taken of a chunk that ends at " + std::to_string(end) + ", with " +
                 std::to_string(held.cache.snapshots) + " slots");
    }
  }
};

// The arrays that log-probabilities of n rows are written to.
struct LogprobArrays {
  Array wanted, values, top_ids, top_values;

  LogprobArrays(std::int64_t n, nb::handle wanted_, nb::handle values_, nb::handle top_ids_, nb::handle top_values_)
      : wanted(wanted_, "top_logprobs", Kind::i32, {n}),
        values(values_, "logprobs", Kind::f32, {n}, true),
        top_ids(top_ids_, "top_ids", Kind::i32, {n, any}, true),
        top_values(top_values_, "top_logprobs", Kind::f32, {n, top_ids.size(1)}, true) {}

  Logprobs logprobs() const {
    return {wanted.data<std::int32_t>(), values.data<float>(), top_ids.data<std::int32_t>(),
            top_values.data<float>(), top_ids.size(1)};
  }
};

// The numbers of a norm.
struct Vector {
  explicit Vector(nb::handle values) : array(values, "a vector", Kind::f32, {any}) {}
  Array array;
};

// Cosines and sines of positions, and maybe what their queries are multiplied by.
struct RopeTable {
  RopeTable(nb::handle cos_, nb::handle sin_, nb::handle q_scale_)
      : cos(cos_, "cos", Kind::f32, {any, any}), sin(sin_, "sin", Kind::f32, {cos.size(0), cos.size(1)}) {
    if (!q_scale_.is_none())
      q_scale.emplace(q_scale_, "q_scale", Kind::f32, std::initializer_list<std::int64_t>{cos.size(0)});
  }
  Array cos, sin;
  std::optional<Array> q_scale;
};

// Memory of numpy's for rows of numbers. rows: those that were written last.
struct Activation {
  explicit Activation(nb::object object_)
      : object(object_), array(object_, "an activation"), kind(array.kind()), capacity(array.size(0)),
        columns(array.size(1)), rows(capacity) {}

  nb::object object;
  Array array;
  Kind kind;
  std::int64_t capacity, columns, rows;
};

void expect(const Activation& a, const char* name, Kind kind, std::int64_t columns) {
  if (a.kind == kind && a.columns == columns) return;
  refuse(std::string(name) + " must hold " + name_of(kind) + " in rows of " + std::to_string(columns) + ", not " +
         name_of(a.kind) + " in rows of " + std::to_string(a.columns));
}

// `out` is about to be written.
void begin(Activation& out, Kind kind, std::int64_t columns, std::int64_t rows) {
  expect(out, "out", kind, columns);
  if (out.array.readonly()) refuse("out must be writable");
  if (out.capacity < rows)
    refuse("out must have room for " + std::to_string(rows) + " rows, not for " + std::to_string(out.capacity));
  out.rows = rows;
}

// Where the tokens of a pass lie.
struct MetadataArrays {
  Array positions, query_start, context_len, block_tables;
  AttentionMetadata all;  // with the block tables of the first group
  std::int64_t groups;

  MetadataArrays(nb::handle positions_, nb::handle query_start_, nb::handle context_len_, nb::handle block_tables_)
      : positions(positions_, "positions", Kind::i32, {any}),
        query_start(query_start_, "query_start", Kind::i32, {any}),
        context_len(context_len_, "context_len", Kind::i32, {chunks()}),
        block_tables(block_tables_, "block_tables", Kind::i32, {any, chunks(), any}), groups(block_tables.size(0)) {
    all = {positions.data<std::int32_t>(), query_start.data<std::int32_t>(), context_len.data<std::int32_t>(),
           block_tables.data<std::int32_t>(), positions.size(0), chunks(), block_tables.size(2)};
    if (all.query_start[0] != 0 || all.query_start[all.chunks] != all.tokens)
      refuse("query_start must begin with 0 and end with the number of tokens");
    for (std::int64_t c = 0; c < all.chunks; ++c) {
      const std::int64_t first = all.query_start[c], last = all.query_start[c + 1];
      if (first > last || last > all.tokens || all.context_len[c] < 0)
        refuse("query_start must ascend, and context_len not be negative");
      for (std::int64_t t = first; t < last; ++t)
        if (all.positions[t] != all.context_len[c] + t - first)
          refuse("positions of a chunk must rise by one from its start");
    }
  }

  std::int64_t chunks() const {
    if (query_start.size(0) < 1) refuse("query_start must have one element more than there are chunks");
    return query_start.size(0) - 1;
  }

  // With the block tables of a group.
  AttentionMetadata of(std::int64_t group) const {
    AttentionMetadata found = all;
    found.block_tables += group * all.chunks * all.table_width;
    return found;
  }

  std::int64_t end(std::int64_t chunk) const {  // past its last position
    return all.context_len[chunk] + all.query_start[chunk + 1] - all.query_start[chunk];
  }

  // The blocks of a group that hold positions [first, end) of a chunk must exist.
  void check_blocks(const KVCacheMemory& cache, std::int64_t group, std::int64_t chunk, std::int64_t first) const {
    if (all.query_start[chunk] == all.query_start[chunk + 1]) return;
    const std::int64_t last = (end(chunk) - 1) / cache.block_size;
    if (last >= all.table_width)
      refuse("the block table of chunk " + std::to_string(chunk) + " is too short for its positions");
    const std::int32_t* table = of(group).block_tables + chunk * all.table_width;
    for (std::int64_t b = first / cache.block_size; b <= last; ++b) {
      const std::int64_t id = table[b];
      if (id < 0 || id >= cache.blocks)
        refuse("the block table of chunk " + std::to_string(chunk) + " names block " + std::to_string(id) +
               ", which is not in the KV cache");
    }
  }

  // As far as a window lets queries see, from the beginning of a tile; those that are written, besides.
  void check_blocks(const KVCacheMemory& cache, std::int64_t group, std::int64_t window) const {
    for (std::int64_t c = 0; c < all.chunks; ++c) {
      const std::int64_t seen = window > 0 ? std::max<std::int64_t>(0, all.context_len[c] + 1 - window) : 0;
      check_blocks(cache, group, c, seen / tile_positions * tile_positions);
    }
  }
};

class Backend {
 public:
  Backend(const std::string& dtype, int threads, const std::string& isa, const std::vector<int>& cores) {
    if (dtype != "bfloat16" && dtype != "float32") refuse("dtype must be bfloat16 or float32, not " + dtype);
    if (threads < 1 || threads > 1024) refuse("threads must be between 1 and 1024, not " + std::to_string(threads));
    format_ = dtype == "bfloat16" ? Format::bf16 : Format::f32;
    act_ = format_ == Format::bf16 ? Kind::u16 : Kind::f32;
    int count = 0;
    const Kernels* const* tables = available_kernels(&count);
    std::string names;
    for (int i = 0; i < count && kernels_ == nullptr; ++i) {
      if (isa == "auto" || isa == tables[i]->name) kernels_ = tables[i];
      names += (i ? ", " : "") + std::string(tables[i]->name);
    }
    if (kernels_ == nullptr) refuse("this machine has no instruction set \"" + isa + "\"; it has " + names);
    for (const int core : cores)
      if (core < 0 || core >= 1024) refuse("cores are numbered from 0 to 1023, so that there is no " + std::to_string(core));
    pool_ = std::make_unique<Pool>(threads, cores.data(), static_cast<int>(cores.size()));
  }

  std::string isa() const { return kernels_->name; }

  // pieces: (matrices, hold, span, offsets, meanings, order) each, stacked along the outputs.
  std::shared_ptr<Linear> pack_linear(nb::list pieces, nb::handle bias) {
    auto linear = std::make_shared<Linear>();
    linear->format = format_;
    for (nb::handle given : pieces) pack(*linear, nb::cast<nb::tuple>(given));
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

  // A piece of two matrices. bias: [2][rows], of gate and of up.
  std::shared_ptr<Linear> pack_gate_up(nb::tuple piece, nb::handle bias) {
    auto linear = std::make_shared<Linear>();
    linear->format = format_;
    linear->gate_up = true;
    pack(*linear, piece);
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

  std::shared_ptr<Experts> pack_experts(const std::vector<std::shared_ptr<Linear>>& gate_up,
                                        const std::vector<std::shared_ptr<Linear>>& down, std::int64_t top_k,
                                        bool sigmoid, bool renormalize, nb::handle correction, std::int64_t groups,
                                        std::int64_t top_groups, std::int64_t group_best, float scale,
                                        nb::handle expert_scale, const std::string& gating) const {
    const auto count = static_cast<std::int64_t>(gate_up.size());
    if (count < 1 || down.size() != gate_up.size()) refuse("experts need matrices of gate and up, and of down, for each");
    if (groups < 1 || count % groups != 0 || top_groups < 1 || top_groups > groups || top_k < 1 ||
        top_k > count / groups * top_groups || (groups > 1 && (group_best < 1 || group_best > 8 || group_best > count / groups)))
      refuse(std::to_string(top_k) + " of " + std::to_string(count) + " experts in " + std::to_string(groups) +
             " groups cannot be picked so");
    auto experts = std::make_shared<Experts>();
    experts->format = format_;
    for (std::int64_t e = 0; e < count; ++e) {
      if (gate_up[e]->format != format_ || down[e]->format != format_)
        refuse("these weights were packed by a backend of another dtype");
      if (gate_up[e]->pieces.size() != 1 || down[e]->pieces.size() != 1) refuse("an expert's matrices must be of one piece");
      const Weights &in = gate_up[e]->pieces[0].weights, &out = down[e]->pieces[0].weights,
                    &first = gate_up[0]->pieces[0].weights;
      if (!in.gate_up || out.gate_up || in.rows != out.columns || in.columns != out.rows || in.rows != first.rows ||
          in.columns != first.columns || !alike(gate_up[e]->pieces[0].layout, gate_up[0]->pieces[0].layout) ||
          !alike(down[e]->pieces[0].layout, down[0]->pieces[0].layout))
        refuse("experts must have equal shapes, held alike: gate and up [F, E], down [E, F]");
      experts->held.push_back(gate_up[e]), experts->held.push_back(down[e]);
      experts->gate_up.push_back(&in), experts->down.push_back(&out);
      experts->orders.gate_up.push_back(gate_up[e]->pieces[0].order_or_null());
      experts->orders.down.push_back(down[e]->pieces[0].order_or_null());
    }
    for (auto* orders : {&experts->orders.gate_up, &experts->orders.down})
      if (std::none_of(orders->begin(), orders->end(), [](const auto* order) { return order != nullptr; })) orders->clear();
    const auto of_each = [&](nb::handle given, const char* name, std::vector<float>& to) -> const float* {
      if (given.is_none()) return nullptr;
      const Array values(given, name, Kind::f32, {count});
      to.assign(values.data<float>(), values.data<float>() + count);
      return to.data();
    };
    const float* added = of_each(correction, "correction", experts->correction);
    const float* factors = of_each(expert_scale, "expert_scale", experts->expert_scale);
    if (gating != "silu" && gating != "gelu_tanh" && gating != "clamped_swiglu")
      refuse("experts are gated by silu, gelu_tanh or clamped_swiglu, not by " + gating);
    const Epilogue gated = gating == "silu"        ? Epilogue::gate_up
                           : gating == "gelu_tanh" ? Epilogue::gate_up_gelu
                                                   : Epilogue::gate_up_clamped;
    experts->mixture = {experts->gate_up.data(), experts->down.data(), count, top_k, groups, top_groups, group_best,
                        sigmoid, renormalize, added, factors, scale, gated};
    return experts;
  }

  std::shared_ptr<Heads> pack_heads(const std::vector<std::shared_ptr<Linear>>& weights) const {
    if (weights.empty()) refuse("heads need a matrix each");
    auto heads = std::make_shared<Heads>();
    heads->format = format_;
    for (const auto& one : weights) {
      if (one->format != format_) refuse("these weights were packed by a backend of another dtype");
      if (one->gate_up || one->pieces.size() != 1 || !one->bias.empty() || one->rows != weights[0]->rows ||
          one->columns != weights[0]->columns || !alike(one->pieces[0].layout, weights[0]->pieces[0].layout))
        refuse("the matrices of heads must have equal shapes, held alike in one piece, and no biases");
      if (one->pieces[0].order_or_null()) refuse("the inputs of heads cannot be out of order");
      heads->held.push_back(one), heads->matrices.push_back(&one->pieces[0].weights);
    }
    return heads;
  }

  // A tied table is a linear of one piece, and a piece of one matrix.
  std::shared_ptr<Table> pack_table(nb::object table) {
    auto packed = std::make_shared<Table>();
    packed->format = format_;
    nb::list pieces;
    pieces.append(table);
    packed->linear = pack_linear(pieces, nb::none());
    if (packed->linear->pieces[0].order_or_null()) refuse("a table's columns cannot be out of order");
    packed->rows = packed->linear->rows, packed->columns = packed->linear->columns;
    return packed;
  }

  // An untied one is a plain matrix, of pieces that follow one another along its rows.
  std::shared_ptr<Table> pack_rows(nb::iterable pieces, std::int64_t table_rows, std::int64_t columns) {
    if (table_rows < 1 || columns < 1) refuse("a table has rows and columns");
    auto packed = std::make_shared<Table>();
    packed->format = format_, packed->rows = table_rows, packed->columns = columns;
    packed->memory = Memory(static_cast<std::size_t>(table_rows * columns * item()));
    std::int64_t filled = 0;
    for (nb::handle piece : pieces) {
      const Array source(piece, "rows of a table");
      const SourceMatrix matrix = source.matrix();
      if (source.size(1) != columns || matrix.rows > table_rows - filled)
        refuse("the pieces of a table do not make " + std::to_string(table_rows) + " rows of " + std::to_string(columns));
      auto* to = static_cast<char*>(packed->memory.data()) + filled * columns * item();
      run([&] { kernels_->rows.copy_rows(*pool_, format_, matrix, columns, to); });
      filled += matrix.rows;
    }
    if (filled != table_rows) refuse("the pieces of a table are " + std::to_string(filled) + " of its rows");
    return packed;
  }

  std::int64_t bytes_per_block(std::int64_t block_size, bool quantized,
                               const std::vector<std::array<std::int64_t, 4>>& kept) const {
    return KVLayout(block_size, quantized, kept, format_).block_lanes * 4;
  }

  // kept: of each layer its group, heads, width of keys and of values.
  std::shared_ptr<KVCacheMemory> kv_cache(std::int64_t block_size, bool quantized,
                                          const std::vector<std::array<std::int64_t, 4>>& kept,
                                          std::int64_t blocks) const {
    if (blocks < 1) refuse("a KV cache needs at least one block");
    KVLayout layout(block_size, quantized, kept, format_);
    Memory memory(static_cast<std::size_t>(blocks * layout.block_lanes * 4));
    for (std::size_t i = 0; i < layout.layers.size(); ++i) {
      KVLayer& layer = layout.layers[i];
      layer.data = static_cast<std::uint32_t*>(memory.data()) + layout.offsets[i];
      layer.block_lanes = layout.block_lanes, layer.blocks = blocks;
    }
    return std::make_shared<KVCacheMemory>(std::move(layout), blocks, block_size, format_, quantized, std::move(memory));
  }

  void copy_blocks(KVCacheMemory& cache, const std::vector<std::int64_t>& sources,
                   const std::vector<std::int64_t>& destinations) {
    if (sources.size() != destinations.size()) refuse("sources and destinations must be equally many");
    for (const auto* list : {&sources, &destinations})
      for (const std::int64_t block : *list)
        if (block < 0 || block >= cache.blocks) refuse("block " + std::to_string(block) + " is not in this KV cache");
    const std::int64_t lanes = cache.layout.block_lanes;
    run([&] {
      for (std::size_t i = 0; i < sources.size(); ++i)
        std::memmove(cache.data() + destinations[i] * lanes, cache.data() + sources[i] * lanes, lanes * 4);
    });
  }

  std::int64_t bytes_per_state(const std::vector<std::vector<std::int64_t>>& layers) const {
    std::vector<LayerState> found;
    return lay_out_state(found, layers, format_);
  }

  std::shared_ptr<StateCacheMemory> state_cache(const std::vector<std::vector<std::int64_t>>& layers, std::int64_t rows,
                                                std::int64_t snapshots) const {
    if (rows < 1 || snapshots < 0) refuse("a state cache needs at least one row");
    auto held = std::make_shared<StateCacheMemory>();
    held->format = format_;
    held->cache = {nullptr, lay_out_state(held->layers, layers, format_), rows, snapshots};
    if (held->cache.bytes < 1) refuse("none of these layers has a state");
    held->memory = Memory(static_cast<std::size_t>((rows + snapshots) * held->cache.bytes));
    held->cache.data = static_cast<char*>(held->memory.data());
    return held;
  }

  // The row's state becomes that of the snapshot.
  void begin_state(StateCacheMemory& held, std::int64_t row, std::int64_t slot) {
    const StateCache& cache = held.cache;
    if (row < 0 || row >= cache.rows || slot < 0 || slot >= cache.snapshots)
      refuse("row " + std::to_string(row) + " cannot begin from snapshot " + std::to_string(slot) + ": there are " +
             std::to_string(cache.rows) + " rows and " + std::to_string(cache.snapshots) + " snapshots");
    run([&] { std::memcpy(cache.data + row * cache.bytes, cache.data + (cache.rows + slot) * cache.bytes, cache.bytes); });
  }

  void sample(nb::handle logits, nb::handle temperature, nb::handle top_k, nb::handle top_p, nb::handle min_p,
              nb::handle repetition, nb::handle presence, nb::handle frequency, nb::handle seed,
              nb::handle sample_index, nb::handle draw_index, nb::sequence histories, nb::handle prompt_lengths,
              nb::handle bias_offsets, nb::handle bias_ids, nb::handle bias_values, nb::sequence allowed,
              nb::handle want_logprobs, nb::handle top_logprobs, nb::handle token_ids, nb::handle logprobs, nb::handle top_ids,
              nb::handle top_values) {
    Array rows(logits, "logits", Kind::f32, {any, any}, true);
    const std::int64_t n = rows.size(0), vocabulary = rows.size(1);
    if (vocabulary < 1) refuse("logits must have columns");
    const auto floats = [&](nb::handle h, const char* name) { return Array(h, name, Kind::f32, {n}); };
    const auto ints = [&](nb::handle h, const char* name) { return Array(h, name, Kind::i32, {n}); };
    const Array a_temperature = floats(temperature, "temperature"), a_top_p = floats(top_p, "top_p"),
                a_min_p = floats(min_p, "min_p"), a_repetition = floats(repetition, "repetition_penalty"),
                a_presence = floats(presence, "presence_penalty"), a_frequency = floats(frequency, "frequency_penalty"),
                a_top_k = ints(top_k, "top_k"), a_lengths = ints(prompt_lengths, "prompt_lengths");
    const Array a_seed(seed, "seed", Kind::u64, {n}), a_sample(sample_index, "sample_index", Kind::u32, {n}),
        a_draw(draw_index, "draw_index", Kind::u32, {n}), a_want(want_logprobs, "want_logprobs", Kind::boolean, {n}),
        a_offsets(bias_offsets, "bias_offsets", Kind::i32, {n + 1}), a_ids(bias_ids, "bias_ids", Kind::i32, {any}),
        a_values(bias_values, "bias_values", Kind::f32, {a_ids.size(0)}),
        a_tokens(token_ids, "token_ids", Kind::i32, {n}, true);
    const LogprobArrays report(n, top_logprobs, logprobs, top_ids, top_values);

    const std::int32_t* at = a_offsets.data<std::int32_t>();
    for (std::int64_t s = 0; s < n; ++s)
      if (at[0] != 0 || at[s] > at[s + 1]) refuse("bias_offsets must begin with 0 and ascend");
    if (n > 0 && at[n] > a_ids.size(0)) refuse("bias_offsets reach past bias_ids");
    for (std::int64_t i = 0; n > 0 && i < at[n]; ++i)
      if (a_ids.data<std::int32_t>()[i] < 0 || a_ids.data<std::int32_t>()[i] >= vocabulary)
        refuse("bias_ids must be token ids");

    const OptionalRows<std::int32_t> known(histories, n, "histories", Kind::i32, any);
    const OptionalRows<std::uint32_t> masks(allowed, n, "allowed", Kind::u32, (vocabulary + 31) / 32);
    const Sampling s{a_temperature.data<float>(), a_top_p.data<float>(), a_min_p.data<float>(),
                     a_repetition.data<float>(), a_presence.data<float>(), a_frequency.data<float>(),
                     a_top_k.data<std::int32_t>(), a_lengths.data<std::int32_t>(), at, a_ids.data<std::int32_t>(),
                     a_seed.data<std::uint64_t>(), a_sample.data<std::uint32_t>(), a_draw.data<std::uint32_t>(),
                     a_want.data<bool>(), a_values.data<float>(), known.data(), known.lengths(), masks.data(),
                     a_tokens.data<std::int32_t>(), report.logprobs()};
    run([&] { kernels_->rows.sample(*pool_, rows.data<float>(), n, vocabulary, s); });
  }

  void score(nb::handle logits, nb::handle token_ids, nb::handle top_logprobs, nb::handle logprobs, nb::handle top_ids,
             nb::handle top_values) {
    Array rows(logits, "logits", Kind::f32, {any, any}, true);
    const std::int64_t n = rows.size(0), vocabulary = rows.size(1);
    const Array tokens(token_ids, "token_ids", Kind::i32, {n});
    for (std::int64_t s = 0; s < n; ++s)
      if (tokens.data<std::int32_t>()[s] < 0 || tokens.data<std::int32_t>()[s] >= vocabulary)
        refuse("token_ids must be token ids");
    const LogprobArrays report(n, top_logprobs, logprobs, top_ids, top_values);
    run([&] {
      kernels_->rows.score(*pool_, rows.data<float>(), n, vocabulary, tokens.data<std::int32_t>(), report.logprobs());
    });
  }

  // Best of a few passes over memory that no cache holds.
  double read_bandwidth(std::int64_t bytes, int passes) {
    nb::gil_scoped_release release;
    std::lock_guard lock(turn_);
    if (probe_.bytes() < static_cast<std::size_t>(bytes)) {
      probe_ = Memory(static_cast<std::size_t>(bytes));
      std::memset(probe_.data(), 1, probe_.bytes());
    }
    double best = 0;
    for (int i = 0; i < passes; ++i) best = std::max(best, kernels_->rows.read_bandwidth(*pool_, probe_.data(), bytes));
    return best;
  }

  double peak(const std::string& kind, double seconds) {
    if (kind != "bf16" && kind != "f32" && kind != "int8") refuse("kind must be bf16, f32 or int8, not " + kind);
    const ProductKernels& kernels =
        kind == "bf16" ? kernels_->bf16 : kind == "f32" ? kernels_->f32 : kernels_->int8_bf16;
    double result = 0;
    run([&] { result = kernels.peak(*pool_, seconds); });
    return result;
  }

  template <class Work>
  void run(Work&& work) {
    nb::gil_scoped_release release;
    std::lock_guard lock(turn_);
    work();
  }

  Pool& pool() { return *pool_; }
  const RowKernels& row_kernels() const { return kernels_->rows; }
  Format format() const { return format_; }
  Kind act() const { return act_; }

  // For weights, or keys and values, that are held so.
  const ProductKernels& products(Hold hold) const {
    const bool bf16 = format_ == Format::bf16;
    switch (hold) {
      case Hold::int4: return bf16 ? kernels_->int4_bf16 : kernels_->int4_f32;
      case Hold::int8: return bf16 ? kernels_->int8_bf16 : kernels_->int8_f32;
      case Hold::act: break;
    }
    return bf16 ? kernels_->bf16 : kernels_->f32;
  }

 private:
  std::int64_t item() const { return format_ == Format::bf16 ? 2 : 4; }

  // One more piece of a matrix.
  void pack(Linear& linear, const nb::tuple& given) {
    if (nb::len(given) != 6) refuse("a piece is its matrices, their layout and their order");
    Piece piece{layout_of(given[1], given[2], given[3], given[4]), {}, {}, {}, {}, linear.rows};
    std::vector<PartSource> sources;
    std::vector<SourceMatrix> parts;
    for (nb::handle part : given[0]) {
      sources.emplace_back(part, piece.layout);
      parts.push_back(sources.back().matrix);
      if (sources.back().columns != (linear.pieces.empty() ? sources[0].columns : linear.columns))
        refuse("stacked weight matrices must have equal columns");
      piece.weights.rows += parts.back().rows;
    }
    if (parts.empty()) refuse("a linear needs at least one weight matrix");
    Weights& w = piece.weights;
    w.columns = linear.columns = sources[0].columns;
    if (!given[5].is_none()) {
      const Array order(given[5], "the order of inputs", Kind::i32, {w.columns});
      piece.order.assign(order.data<std::int32_t>(), order.data<std::int32_t>() + w.columns);
      for (const std::int32_t column : piece.order)
        if (column < 0 || column >= w.columns) refuse("the order of inputs must name columns");
    }
    w.gate_up = linear.gate_up;
    if (w.gate_up) {
      if (parts.size() != 2 || parts[0].rows != parts[1].rows) refuse("gate and up must have equal shapes");
      w.rows = parts[0].rows;
    }
    shape(piece);
    w.out_stride = w.rows;
    run([&] { kernels_->rows.pack(*pool_, format_, piece.layout.hold, parts.data(), w); });
    linear.rows += w.rows;
    linear.pieces.push_back(std::move(piece));
  }

  // Steps, groups and memory of a piece whose rows and columns are known.
  void shape(Piece& piece) {
    Weights& w = piece.weights;
    const Hold hold = piece.layout.hold;
    if (hold == Hold::int8 && w.columns > most_int8_columns)
      refuse("sums of int8 products fit 32 bits over " + std::to_string(most_int8_columns) + " columns, not over " +
             std::to_string(w.columns));
    w.spans = piece.layout.spans;
    const std::int64_t inputs = hold == Hold::int4 ? w.spans.inputs : hold == Hold::int8 ? 4 : per_step(format_);
    w.steps = (w.columns + inputs - 1) / inputs;
    w.step_lanes = hold == Hold::int4 ? w.spans.first_codes() + inputs / 8 * group_lanes : group_lanes;
    w.groups = ((w.gate_up ? 2 : 1) * ((w.rows + panel - 1) / panel * panel) + group_lanes - 1) / group_lanes;
    piece.memory = weight_arena_.take(static_cast<std::size_t>(w.groups * w.steps * w.step_lanes * 4));
    w.data = static_cast<std::uint32_t*>(piece.memory.data());
    if (hold != Hold::act) piece.scales.resize(static_cast<std::size_t>(w.groups * group_lanes));
    w.scales = hold == Hold::act ? nullptr : piece.scales.data();
  }

  Format format_{};
  Kind act_{};
  const Kernels* kernels_ = nullptr;
  std::unique_ptr<Pool> pool_;
  std::mutex turn_;  // calls from several Python threads take turns
  WeightArena weight_arena_;  // of packed weights
  Memory probe_;
};

// One forward pass: what lies where is checked, and attention is divided once for all layers that see alike.
class PreparedPass {
 public:
  PreparedPass(Backend& backend, std::shared_ptr<KVCacheMemory> held, nb::handle token_ids, nb::handle positions,
               nb::handle query_start, nb::handle context_len, nb::handle block_tables,
               std::shared_ptr<StateCacheMemory> states, nb::handle state_rows, nb::handle snapshot_start,
               nb::handle snapshot_positions, nb::handle snapshot_slots)
      : backend_(backend), cache_(std::move(held)), states_(std::move(states)),
        metadata_(positions, query_start, context_len, block_tables),
        token_ids_(token_ids, "token_ids", Kind::i32, {metadata_.all.tokens}) {
    if (cache_->format != backend.format()) refuse("this KV cache belongs to a backend of another dtype");
    if (metadata_.groups != cache_->layout.group_count)
      refuse("this KV cache has " + std::to_string(cache_->layout.group_count) + " groups, and there are block tables for " +
             std::to_string(metadata_.groups));
    for (std::int64_t c = 0; c < metadata_.all.chunks; ++c) {
      for (std::int64_t g = 0; g < metadata_.groups; ++g)
        metadata_.check_blocks(*cache_, g, c, metadata_.all.context_len[c]);
      past_position_ = std::max(past_position_, metadata_.end(c));
    }
    if (states_ != nullptr) {
      if (states_->format != backend.format()) refuse("these states belong to a backend of another dtype");
      where_.emplace(*states_, metadata_.all, state_rows, snapshot_start, snapshot_positions, snapshot_slots);
    }
  }

  void embed(const Table& table, Activation& out) {
    same_format(table.format);
    const std::int64_t tokens = metadata_.all.tokens;
    const auto* ids = token_ids_.data<std::int32_t>();
    for (std::int64_t t = 0; t < tokens; ++t)
      if (ids[t] < 0 || ids[t] >= table.rows)
        refuse("token id " + std::to_string(ids[t]) + " is outside the table of " + std::to_string(table.rows));
    begin(out, Kind::f32, table.columns, tokens);
    auto* to = out.array.data<float>();
    backend_.run([&] {
      if (table.linear) {
        const Piece& piece = table.linear->pieces[0];
        rows().embed_packed(pool(), format(), piece.layout.hold, piece.weights, ids, tokens, to);
      } else {
        rows().embed_rows(pool(), format(), table.memory.data(), table.columns, ids, tokens, to);
      }
    });
  }

  void rms_norm(const Activation& x, const Vector& weight, float eps, Activation& out) {
    const std::int64_t width = weight.array.size(0);
    expect(x, "x", Kind::f32, width);
    begin(out, backend_.act(), width, x.rows);
    backend_.run([&] {
      rows().rms_norm(pool(), format(), x.array.data<float>(), weight.array.data<float>(), eps, x.rows, width,
                      out.array.data());
    });
  }

  void layer_norm(const Activation& x, const Vector& weight, const Vector* bias, float eps, Activation& out) {
    const std::int64_t width = weight.array.size(0);
    if (bias != nullptr && bias->array.size(0) != width) refuse("a norm's bias must be as long as its weight");
    expect(x, "x", Kind::f32, width);
    begin(out, backend_.act(), width, x.rows);
    backend_.run([&] {
      rows().layer_norm(pool(), format(), x.array.data<float>(), weight.array.data<float>(), numbers(bias), eps, x.rows,
                        width, out.array.data());
    });
  }

  void to_act(const Activation& x, Activation& out) {
    expect(x, "x", Kind::f32, out.columns);
    begin(out, backend_.act(), x.columns, x.rows);
    backend_.run([&] { rows().to_act(pool(), format(), x.array.data<float>(), x.rows, x.columns, out.array.data()); });
  }

  // parameters: the two of xielu. by: what is multiplied, its columns from the first on.
  void activate(const Activation& x, const std::string& kind, Activation& out, const Vector* parameters,
                const Activation* by, std::int64_t first) {
    const Nonlinearity known = nonlinearity(kind);
    if (known == Nonlinearity::xielu && (parameters == nullptr || parameters->array.size(0) != 2))
      refuse("xielu needs its two parameters");
    expect(x, "x", Kind::f32, out.columns);
    if (by != nullptr && (by->kind != Kind::f32 || by->rows != x.rows || first < 0 || first > by->columns - x.columns))
      refuse("what is multiplied must hold float32, a row for each of x, and its columns from the first on");
    begin(out, backend_.act(), x.columns, x.rows);
    const float* factors = by ? by->array.data<float>() + first : nullptr;
    backend_.run([&] {
      rows().activate(pool(), format(), known, numbers(parameters), x.array.data<float>(), factors,
                      by ? by->columns : 0, x.rows, x.columns, out.array.data());
    });
  }

  void clear(Activation& out) {
    begin(out, Kind::f32, out.columns, metadata_.all.tokens);
    std::memset(out.array.data(), 0, static_cast<std::size_t>(out.rows * out.columns) * sizeof(float));
  }

  void add(const Activation& x, const Vector* norm, float eps, float factor, Activation& out) {
    const std::int64_t width = norm ? norm->array.size(0) : x.columns;
    expect(x, "x", Kind::f32, out.columns);
    if (width < 1 || x.columns % width != 0) refuse("a norm must be as long as a row of x, or as equal parts of one");
    begin(out, Kind::f32, x.columns, x.rows);
    const std::int64_t parts = x.rows * (x.columns / width);
    backend_.run([&] {
      rows().add(pool(), x.array.data<float>(), numbers(norm), eps, factor, parts, width, out.array.data<float>());
    });
  }

  void scale(Activation& x, float factor) {
    begin(x, Kind::f32, x.columns, x.rows);
    backend_.run([&] { rows().scale(pool(), x.array.data<float>(), factor, x.rows, x.columns); });
  }

  void soft_cap(Activation& x, float cap) {
    if (!(cap > 0)) refuse("cap must be positive");
    begin(x, Kind::f32, x.columns, x.rows);
    backend_.run([&] { rows().soft_cap(pool(), x.array.data<float>(), cap, x.rows, x.columns); });
  }

  void linear(const Activation& x, const Linear& weight, Activation& out) { product(x, weight, Epilogue::store, out); }
  void linear_residual(const Activation& x, const Linear& weight, Activation& out) {
    product(x, weight, Epilogue::residual, out);
  }
  void gate_up(const Activation& x, const Linear& weight, Activation& out, const std::string& activation) {
    const Nonlinearity known = nonlinearity(activation);
    if (known != Nonlinearity::silu && known != Nonlinearity::gelu)
      refuse("gate_up multiplies by silu or gelu_tanh, not by " + activation);
    product(x, weight, known == Nonlinearity::silu ? Epilogue::gate_up : Epilogue::gate_up_gelu, out);
  }

  void product(const Activation& x, const Linear& linear, Epilogue epilogue, Activation& out) {
    const bool gated = epilogue == Epilogue::gate_up || epilogue == Epilogue::gate_up_gelu;
    same_format(linear.format);
    if (linear.gate_up != gated) refuse("weights of gate and up go with gate_up, others with linear");
    expect(x, "x", backend_.act(), linear.columns);
    begin(out, gated ? backend_.act() : Kind::f32, linear.rows, x.rows);
    backend_.run([&] {
      const std::int64_t item = format() == Format::bf16 ? 2 : 4;
      const std::vector<std::int32_t>* ordered = nullptr;  // the order that columns lie in beside x
      for (const Piece& piece : linear.pieces) {
        const Share all{&piece.weights, 0, x.rows};
        void* to = gated ? out.array.data() : out.array.data<float>() + piece.first;
        const void* from = x.array.data();
        if (!piece.order.empty()) {
          void* beside = pool().scratch(2, static_cast<std::size_t>(x.rows * x.columns * item));
          if (ordered == nullptr || *ordered != piece.order)
            rows().gather(pool(), from, nullptr, piece.order.data(), x.rows, x.columns, item, beside);
          ordered = &piece.order;
          from = beside;
        }
        backend_.products(piece.layout.hold).gemm(pool(), from, &all, 1, epilogue, to);
      }
    });
  }

  void experts(const Activation& x, const Activation& logits, const Experts& experts, Activation& out) {
    const Mixture& mixture = experts.mixture;
    const Weights &gate_up = *mixture.gate_up[0], &down = *mixture.down[0];
    same_format(experts.format);
    expect(x, "x", backend_.act(), gate_up.columns);
    expect(logits, "logits", Kind::f32, mixture.experts);
    if (logits.rows != x.rows) refuse("logits must have a row for each row of x");
    begin(out, Kind::f32, down.rows, x.rows);
    const std::int64_t item = format() == Format::bf16 ? 2 : 4;
    const ProductKernels &of_gate_up = backend_.products(experts.held[0]->pieces[0].layout.hold),
                         &of_down = backend_.products(experts.held[1]->pieces[0].layout.hold);
    backend_.run([&] {
      run_experts(pool(), rows(), of_gate_up, of_down, item, mixture, experts.orders, x.array.data(),
                  logits.array.data<float>(), x.rows, out.array.data<float>());
    });
  }

  void by_head(const Activation& x, const Heads& weight, Activation& out) {
    const auto heads = static_cast<std::int64_t>(weight.held.size());
    same_format(weight.format);
    expect(x, "x", backend_.act(), heads * weight.columns());
    if (out.columns % heads != 0 || out.columns / heads < weight.rows())
      refuse("out must have " + std::to_string(weight.rows()) + " numbers or more for each of " + std::to_string(heads) +
             " heads, and as many for each; it has rows of " + std::to_string(out.columns));
    begin(out, backend_.act(), out.columns, x.rows);
    const HeadWeights given{weight.matrices.data(), heads, weight.rows(), weight.columns()};
    const ProductKernels& products = backend_.products(weight.held[0]->pieces[0].layout.hold);
    backend_.run([&] {
      run_by_head(pool(), rows(), products, format(), given, x.array.data(), x.rows, out.columns / heads,
                  out.array.data());
    });
  }

  void add_gated(const Activation& x, const Activation& gate, Activation& out) {
    expect(gate, "gate", Kind::f32, 1);
    if (x.kind != Kind::f32 || gate.rows != x.rows) refuse("x must hold float32, and gate a row for each of its rows");
    begin(out, Kind::f32, x.columns, x.rows);
    backend_.run([&] {
      rows().add_gated(pool(), x.array.data<float>(), gate.array.data<float>(), x.rows, x.columns,
                       out.array.data<float>());
    });
  }

  void rope_and_write_kv(const Activation& qkv, std::int64_t layer, const RopeTable* rope, const Vector* q_norm,
                         const Vector* k_norm, float eps, Activation& q_out, bool norms_last, const Vector* v_norm) {
    const KVLayer& kept = with_values(layer);
    const std::int64_t tokens = metadata_.all.tokens, dim = kept.key_dim;
    const std::int64_t heads = q_out.columns / dim, others = qkv.columns / dim - heads;
    if (qkv.kind != Kind::f32 || qkv.columns % dim != 0 || heads < 1 ||
        (others != 0 && others != kept.kv_heads && others != 2 * kept.kv_heads))
      refuse("qkv must hold whole heads of float32: queries, then keys if any, then values if any");
    if (qkv.rows != tokens) refuse("qkv must have a row for each token");
    const std::int64_t pairs = rope ? rope->cos.size(1) : 0;
    if (2 * pairs > dim) refuse("the rope table is for another head dimension");
    if (rope && past_position_ > rope->cos.size(0)) refuse("the rope table is too short for these positions");
    const auto over_all = [&](const Vector* norm, std::int64_t count) {
      if (norm == nullptr || norm->array.size(0) == dim) return false;
      if (norm->array.size(0) != count * dim)
        refuse("q_norm and k_norm must have a number for each of a head's, or of all heads'");
      return true;
    };
    const bool q_all = over_all(q_norm, heads), k_all = over_all(k_norm, kept.kv_heads);
    if (norms_last && (q_all || k_all)) refuse("norms over all heads come before the rotation");
    begin(q_out, backend_.act(), heads * dim, tokens);
    if (v_norm != nullptr && v_norm->array.size(0) != dim) refuse("v_norm must have a number for each of a head's");
    const Projection projection{qkv.array.data<float>(), heads, others > 0, others > kept.kv_heads};
    const Rope given{rope ? rope->cos.data<float>() : nullptr,
                     rope ? rope->sin.data<float>() : nullptr,
                     pairs,
                     rope && rope->q_scale ? rope->q_scale->data<float>() : nullptr,
                     numbers(q_norm),
                     numbers(k_norm),
                     numbers(v_norm),
                     q_all,
                     k_all,
                     norms_last,
                     eps};
    backend_.run([&] {
      rows().rope_and_write(pool(), format(), projection, kept, metadata_.of(group_of(layer)), given,
                            q_out.array.data());
    });
  }

  void rope_and_write_latent(const Activation& q, const Activation& kv, std::int64_t layer, const RopeTable& rope,
                             const Vector& kv_norm, float eps, Activation& nope_out, Activation& q_out) {
    const KVLayer& kept = without_values(layer);
    const std::int64_t tokens = metadata_.all.tokens, width = kept.key_dim, pairs = rope.cos.size(1);
    const std::int64_t heads = q_out.columns / width, nope = nope_out.columns / (heads > 0 ? heads : 1);
    expect(kv, "kv", Kind::f32, width);
    if (kv_norm.array.size(0) + 2 * pairs != width) refuse("kv_norm and the rope table must make up a key together");
    if (heads < 1 || q_out.columns != heads * width || nope_out.columns != heads * nope)
      refuse("q_out and nope_out must have numbers for whole heads");
    expect(q, "q", Kind::f32, heads * (nope + 2 * pairs));
    if (q.rows != tokens || kv.rows != tokens) refuse("q and kv must have a row for each token");
    if (past_position_ > rope.cos.size(0)) refuse("the rope table is too short for these positions");
    begin(nope_out, backend_.act(), nope_out.columns, tokens);
    begin(q_out, backend_.act(), q_out.columns, tokens);
    const Rope given{rope.cos.data<float>(), rope.sin.data<float>(), pairs, nullptr, nullptr, numbers(&kv_norm),
                     nullptr, false, false, false, eps};
    backend_.run([&] {
      rows().rope_and_write_latent(pool(), format(), q.array.data<float>(), kv.array.data<float>(), heads, nope, kept,
                                   metadata_.of(group_of(layer)), given, nope_out.array.data(), q_out.array.data());
    });
  }

  void attention(const Activation& q, std::int64_t layer, float scale, std::int64_t window, Activation& out,
                 float soft_cap, const Vector* sinks) {
    KVLayer kept = layer_at(layer);
    const std::int64_t heads = q.columns / kept.key_dim;
    if (kept.values_in_keys()) {
      kept.value_dim = kept.padded_dim = heads > 0 ? out.columns / heads : 0;
      if (kept.value_dim < 1 || kept.value_dim % panel != 0 || kept.value_dim > kept.key_dim)
        refuse("values that are a part of keys of " + std::to_string(kept.key_dim) +
               " must be no more, and a multiple of 16 numbers, not " + std::to_string(kept.value_dim));
    } else {
      with_values(layer);
    }
    expect(q, "q", backend_.act(), heads * kept.key_dim);
    if (q.rows != metadata_.all.tokens) refuse("q must have a row for each token");
    if (!(scale > 0)) refuse("scale must be positive");
    if (!(soft_cap >= 0)) refuse("soft_cap must be positive, or 0 for none");
    if (sinks != nullptr && sinks->array.size(0) != heads) refuse("sinks must have a number for each query head");
    begin(out, backend_.act(), heads * kept.value_dim, q.rows);
    const AttentionPlan& plan = plan_for(kept, heads, window, group_of(layer));
    const Scores scores{scale, soft_cap, numbers(sinks)};
    backend_.run([&] {
      attention_kernels().attention(pool(), q.array.data(), kept, metadata_.of(group_of(layer)), plan, scores,
                                    out.array.data());
    });
  }

  void convolve(const Activation& x, std::int64_t layer, const Vector& weight, Activation& out) {
    const StateView view = state_of(layer);
    const Convolution given = convolution(view, weight, nullptr);
    if (x.kind != Kind::f32 || x.columns < given.channels || x.rows != metadata_.all.tokens)
      refuse("x must hold a row of float32 for each token, with all inputs of the convolution");
    begin(out, Kind::f32, given.channels, x.rows);
    backend_.run([&] {
      rows().convolve(pool(), format(), view, metadata_.all, given, x.array.data<float>(), x.columns, out.array.data<float>());
    });
  }

  void convolve_gated(const Activation& x, std::int64_t layer, const Vector& weight, const Vector* bias, Activation& out) {
    const StateView view = state_of(layer);
    const Convolution given = convolution(view, weight, bias);
    expect(x, "x", Kind::f32, 3 * given.channels);
    if (x.rows != metadata_.all.tokens) refuse("x must have a row for each token");
    begin(out, backend_.act(), given.channels, x.rows);
    backend_.run([&] {
      rows().convolve_gated(pool(), format(), view, metadata_.all, given, x.array.data<float>(), out.array.data());
    });
  }

  void delta_rule(const Activation& qkv, const Activation& projected, const Activation& gates, std::int64_t layer,
                  std::int64_t key_heads, const Vector& decay, const Vector& step_bias, const Vector& norm, float eps,
                  Activation& out) {
    const StateView view = state_of(layer);
    const LayerState& state = view.layer;
    const std::int64_t tokens = metadata_.all.tokens, inner = state.heads * state.value_dim;
    if (key_heads < 1 || state.heads < 1 || state.heads % key_heads != 0 || state.channels != 2 * key_heads * state.key_dim + inner)
      refuse("the delta rule needs a state of heads over queries, keys and values, as many heads to each of keys");
    expect(qkv, "qkv", Kind::f32, state.channels);
    expect(projected, "projected", Kind::f32, state.channels + inner);
    expect(gates, "gates", Kind::f32, 2 * state.heads);
    if (qkv.rows != tokens || projected.rows != tokens || gates.rows != tokens) refuse("there must be a row for each token");
    if (decay.array.size(0) != state.heads || step_bias.array.size(0) != state.heads || norm.array.size(0) != state.value_dim)
      refuse("decay and step_bias must have a number for each head, norm one for each of a head's values");
    begin(out, backend_.act(), inner, tokens);
    const DeltaRule rule{key_heads, numbers(&decay), numbers(&step_bias), numbers(&norm), eps};
    backend_.run([&] {
      rows().delta_rule(pool(), format(), view, metadata_.all, rule, qkv.array.data<float>(),
                        projected.array.data<float>() + state.channels, projected.columns, gates.array.data<float>(),
                        out.array.data());
    });
  }

  void gate(const Activation& gate, Activation& x) {
    expect(gate, "gate", Kind::f32, x.columns);
    if (gate.rows != x.rows) refuse("gate must have a row for each row of x");
    begin(x, backend_.act(), x.columns, x.rows);
    backend_.run([&] { rows().gate(pool(), format(), gate.array.data<float>(), x.rows, x.columns, x.array.data()); });
  }

  void gather(const Activation& x, const std::vector<std::int64_t>& places, Activation& out) {
    expect(x, "x", Kind::f32, out.columns);
    begin(out, Kind::f32, x.columns, static_cast<std::int64_t>(places.size()));
    auto* to = out.array.data<float>();
    for (const std::int64_t place : places) {
      if (place < 0 || place >= x.rows) refuse("there is no row " + std::to_string(place) + " to gather");
      std::memcpy(to, x.array.data<float>() + place * x.columns, x.columns * sizeof(float));
      to += x.columns;
    }
  }

 private:
  Pool& pool() { return backend_.pool(); }
  const RowKernels& rows() const { return backend_.row_kernels(); }
  Format format() const { return backend_.format(); }

  static const float* numbers(const Vector* vector) { return vector ? vector->array.data<const float>() : nullptr; }

  StateView state_of(std::int64_t layer) const {
    if (states_ == nullptr || layer < 0 || layer >= static_cast<std::int64_t>(states_->layers.size()))
      refuse("layer " + std::to_string(layer) + " has no state");
    return {states_->cache, states_->layers[layer], where_->all};
  }

  static Convolution convolution(const StateView& view, const Vector& weight, const Vector* bias) {
    const std::int64_t channels = view.layer.channels, kernel = view.layer.inputs + 1;
    if (channels < 1 || weight.array.size(0) != channels * kernel || (bias != nullptr && bias->array.size(0) != channels))
      refuse("a convolution needs a weight for each channel of each input that it sees");
    return {numbers(&weight), numbers(bias), channels, kernel};
  }

  static Nonlinearity nonlinearity(const std::string& name) {
    if (name == "silu") return Nonlinearity::silu;
    if (name == "gelu_tanh") return Nonlinearity::gelu;
    if (name == "relu2") return Nonlinearity::relu2;
    if (name == "xielu") return Nonlinearity::xielu;
    refuse("there is no activation function " + name + "; there are silu, gelu_tanh, relu2 and xielu");
  }

  void same_format(Format given) const {
    if (given != format()) refuse("these weights were packed by a backend of another dtype");
  }

  const KVLayer& layer_at(std::int64_t layer) const {
    const std::vector<KVLayer>& layers = cache_->layout.layers;
    if (layer < 0 || layer >= static_cast<std::int64_t>(layers.size()) || layers[layer].kv_heads == 0)
      refuse("layer " + std::to_string(layer) + " is not in the KV cache");
    return layers[layer];
  }

  // One of which softmax attention is computed over keys and values of one width.
  const KVLayer& with_values(std::int64_t layer) const {
    const KVLayer& found = layer_at(layer);
    if (found.key_dim != found.value_dim)
      refuse("layer " + std::to_string(layer) + " has keys of " + std::to_string(found.key_dim) + " and values of " +
             std::to_string(found.value_dim) + " numbers, which must be equally many");
    return found;
  }

  // One that keeps no values beside its keys.
  const KVLayer& without_values(std::int64_t layer) const {
    const KVLayer& found = layer_at(layer);
    if (!found.values_in_keys() || found.kv_heads != 1)
      refuse("layer " + std::to_string(layer) + " keeps values beside its keys; latent attention has none");
    return found;
  }

  std::int64_t group_of(std::int64_t layer) const { return cache_->layout.groups[layer]; }

  const ProductKernels& attention_kernels() const { return backend_.products(cache_->bytes ? Hold::int8 : Hold::act); }

  // Work is divided alike for all groups; what the window lets queries see of a group's blocks is checked once.
  const AttentionPlan& plan_for(const KVLayer& layer, std::int64_t heads, std::int64_t window, std::int64_t group) {
    const auto known = std::find_if(plans_.begin(), plans_.end(), [&](const auto& plan) {
      return plan->heads == heads && plan->kv_heads == layer.kv_heads && plan->padded_dim == layer.padded_dim &&
             plan->window == window;
    });
    if (known != plans_.end() && std::find(seen_.begin(), seen_.end(), std::pair(window, group)) != seen_.end())
      return **known;
    if (heads < 1 || heads % layer.kv_heads != 0)
      refuse("q must hold a whole number of heads for every key/value head");
    if (window < 0) refuse("window must not be negative");
    metadata_.check_blocks(*cache_, group, window);
    seen_.emplace_back(window, group);
    if (known != plans_.end()) return **known;
    auto plan = std::make_unique<AttentionPlan>(heads, layer.kv_heads, layer.padded_dim, window);
    backend_.run([&] { attention_kernels().divide(pool(), layer, metadata_.all, *plan); });
    plans_.push_back(std::move(plan));
    return *plans_.back();
  }

  Backend& backend_;
  std::shared_ptr<KVCacheMemory> cache_;
  std::shared_ptr<StateCacheMemory> states_;  // or null
  MetadataArrays metadata_;
  std::optional<StateArrays> where_;
  Array token_ids_;
  std::int64_t past_position_ = 0;  // of all chunks
  std::vector<std::unique_ptr<AttentionPlan>> plans_;
  std::vector<std::pair<std::int64_t, std::int64_t>> seen_;  // windows and groups whose blocks are checked
};

std::vector<std::string> available_isas() {
  int count = 0;
  const Kernels* const* tables = available_kernels(&count);
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.emplace_back(tables[i]->name);
  return names;
}

}  // namespace
}  // namespace inflight

NB_MODULE(_native, m) {
  using namespace inflight;
  m.def("available_isas", &available_isas);

  nb::class_<Linear>(m, "Linear")
      .def_ro("rows", &Linear::rows)
      .def_ro("columns", &Linear::columns)
      .def_prop_ro("nbytes", &Linear::nbytes);
  nb::class_<Experts>(m, "Experts").def_prop_ro("count", [](const Experts& e) { return e.mixture.experts; });
  nb::class_<Heads>(m, "Heads")
      .def_prop_ro("count", [](const Heads& heads) { return heads.held.size(); })
      .def_prop_ro("rows", &Heads::rows)
      .def_prop_ro("columns", &Heads::columns)
      .def_prop_ro("nbytes", &Heads::nbytes);
  nb::class_<Table>(m, "Table")
      .def_ro("rows", &Table::rows)
      .def_ro("columns", &Table::columns)
      .def_prop_ro("nbytes", &Table::nbytes)
      .def_ro("linear", &Table::linear);
  nb::class_<KVCacheMemory>(m, "KVCache", nb::dynamic_attr())
      .def_prop_ro("num_blocks", [](const KVCacheMemory& held) { return held.blocks; })
      .def_prop_ro("nbytes", [](const KVCacheMemory& held) { return held.memory.bytes(); });
  nb::class_<StateCacheMemory>(m, "StateCache")
      .def_prop_ro("rows", [](const StateCacheMemory& held) { return held.cache.rows; })
      .def_prop_ro("snapshots", [](const StateCacheMemory& held) { return held.cache.snapshots; })
      .def_prop_ro("nbytes", [](const StateCacheMemory& held) { return held.memory.bytes(); });
  nb::class_<Vector>(m, "Vector").def(nb::init<nb::handle>());
  nb::class_<RopeTable>(m, "RopeTable")
      .def(nb::init<nb::handle, nb::handle, nb::handle>(), nb::arg("cos"), nb::arg("sin"), nb::arg("q_scale").none());
  nb::class_<Activation>(m, "Activation")
      .def(nb::init<nb::object>())
      .def_ro("array", &Activation::object)
      .def_ro("rows", &Activation::rows)
      .def_prop_ro("nbytes", [](const Activation& a) { return a.array.nbytes(); });

  nb::class_<Backend>(m, "Backend")
      .def(nb::init<const std::string&, int, const std::string&, const std::vector<int>&>(), nb::arg("dtype"),
           nb::arg("threads"), nb::arg("isa"), nb::arg("cores"))
      .def_prop_ro("isa", &Backend::isa)
      .def("pack_linear", &Backend::pack_linear, nb::arg("pieces"), nb::arg("bias").none())
      .def("pack_gate_up", &Backend::pack_gate_up, nb::arg("piece"), nb::arg("bias").none())
      .def("pack_experts", &Backend::pack_experts, nb::arg("gate_up"), nb::arg("down"), nb::arg("top_k"),
           nb::arg("sigmoid"), nb::arg("renormalize"), nb::arg("correction").none(), nb::arg("groups"),
           nb::arg("top_groups"), nb::arg("group_best"), nb::arg("scale"),
           nb::arg("expert_scale").none(), nb::arg("gating"))
      .def("pack_heads", &Backend::pack_heads)
      .def("pack_table", &Backend::pack_table)
      .def("pack_rows", &Backend::pack_rows)
      .def("bytes_per_block", &Backend::bytes_per_block)
      .def("kv_cache", &Backend::kv_cache)
      .def("copy_blocks", &Backend::copy_blocks)
      .def("bytes_per_state", &Backend::bytes_per_state)
      .def("state_cache", &Backend::state_cache)
      .def("begin_state", &Backend::begin_state)
      .def("sample", &Backend::sample)
      .def("score", &Backend::score)
      .def("read_bandwidth", &Backend::read_bandwidth)
      .def("peak", &Backend::peak);
  nb::class_<PreparedPass>(m, "PreparedPass")
      .def(nb::init<Backend&, std::shared_ptr<KVCacheMemory>, nb::handle, nb::handle, nb::handle, nb::handle,
                    nb::handle, std::shared_ptr<StateCacheMemory>, nb::handle, nb::handle, nb::handle, nb::handle>(),
           nb::keep_alive<1, 2>(), nb::arg("backend"), nb::arg("kv_cache"), nb::arg("token_ids"), nb::arg("positions"),
           nb::arg("query_start"), nb::arg("context_len"), nb::arg("block_tables"), nb::arg("states").none() = nb::none(),
           nb::arg("state_rows") = nb::none(), nb::arg("snapshot_start") = nb::none(),
           nb::arg("snapshot_positions") = nb::none(), nb::arg("snapshot_slots") = nb::none())
      .def("embed", &PreparedPass::embed)
      .def("rms_norm", &PreparedPass::rms_norm)
      .def("layer_norm", &PreparedPass::layer_norm, nb::arg("x"), nb::arg("weight"), nb::arg("bias").none(),
           nb::arg("eps"), nb::arg("out"))
      .def("to_act", &PreparedPass::to_act)
      .def("activate", &PreparedPass::activate, nb::arg("x"), nb::arg("activation"), nb::arg("out"),
           nb::arg("parameters").none() = nb::none(), nb::arg("by").none() = nb::none(), nb::arg("first") = 0)
       .def("clear", &PreparedPass::clear)
      .def("add", &PreparedPass::add, nb::arg("x"), nb::arg("norm").none(), nb::arg("eps"), nb::arg("factor"),
           nb::arg("out"))
      .def("scale", &PreparedPass::scale)
      .def("soft_cap", &PreparedPass::soft_cap)
      .def("linear", &PreparedPass::linear)
      .def("linear_residual", &PreparedPass::linear_residual)
      .def("gate_up", &PreparedPass::gate_up, nb::arg("x"), nb::arg("weight"), nb::arg("out"),
           nb::arg("activation") = "silu")
      .def("experts", &PreparedPass::experts)
      .def("by_head", &PreparedPass::by_head)
      .def("add_gated", &PreparedPass::add_gated)
      .def("rope_and_write_kv", &PreparedPass::rope_and_write_kv, nb::arg("qkv"), nb::arg("layer"),
           nb::arg("rope").none(), nb::arg("q_norm").none(), nb::arg("k_norm").none(), nb::arg("eps"), nb::arg("q_out"),
           nb::arg("norms_last") = false, nb::arg("v_norm").none() = nb::none())
       .def("rope_and_write_latent", &PreparedPass::rope_and_write_latent)
      .def("attention", &PreparedPass::attention, nb::arg("q"), nb::arg("layer"), nb::arg("scale"), nb::arg("window"),
           nb::arg("out"), nb::arg("soft_cap") = 0.0f, nb::arg("sinks").none() = nb::none())
      .def("convolve", &PreparedPass::convolve)
      .def("convolve_gated", &PreparedPass::convolve_gated, nb::arg("x"), nb::arg("layer"), nb::arg("weight"),
           nb::arg("bias").none(), nb::arg("out"))
      .def("delta_rule", &PreparedPass::delta_rule)
      .def("gate", &PreparedPass::gate)
      .def("gather", &PreparedPass::gather);
}
