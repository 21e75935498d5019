// The Python face of the kernels.
//
// Knows numpy arrays (array.h) and checks everything about them once: weights and activations when they are made, the
// tokens, positions and block tables of a pass when it is prepared, so that a call in a layer only compares sizes. Kernels
// trust their arguments, and a wrong shape must end as a ValueError with a sentence, never as a crash. The interpreter
// lock is released while kernels run. Knows nothing of what the kernels compute.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "array.h"
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
  std::int64_t first = 0;  // of its outputs, among the matrix's
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
    for (const Piece& piece : pieces) bytes += piece.memory.bytes() + piece.scales.size() * sizeof(float);
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
  std::vector<float> correction;
  Mixture mixture{};
  Format format{};
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

KVCache kv_cache_of(std::int64_t layers, std::int64_t block_size, std::int64_t kv_heads, std::int64_t head_dim,
               Format format, bool bytes) {
  if (layers < 1 || kv_heads < 1 || block_size < 16 || block_size % 16 != 0 || head_dim < 2 || head_dim % 2 != 0 ||
      head_dim > most_head_dim)
    refuse("a KV shape needs layers and heads, a block size that is a multiple of 16, and an even head dimension of at "
           "most " + std::to_string(most_head_dim));
  KVCache cache{};
  cache.layers = layers, cache.block_size = block_size, cache.kv_heads = kv_heads, cache.head_dim = head_dim;
  cache.padded_dim = (head_dim + panel - 1) / panel * panel;
  const std::int64_t values = bytes ? 4 : per_step(format);
  cache.bytes = bytes;
  cache.key_lanes = (head_dim + values - 1) / values * block_size;
  cache.scales_at = cache.key_lanes + block_size / values * cache.padded_dim;
  cache.head_lanes = cache.scales_at + (bytes ? 2 * block_size : 0);
  return cache;
}

// Where a model's layer has its keys and values: which block table leads to them, and the place in a block.
struct LayerPlace {
  std::int64_t group, place;
};

struct KVCacheMemory {
  KVCache cache{};  // its layers: places in a block
  Format format{};
  Memory memory;
  std::vector<LayerPlace> layers;  // of the model
  std::int64_t groups = 1;
};

// The places of layers whose groups are given, each taking the next one in its group's blocks.
std::vector<LayerPlace> places_of(const std::vector<std::int64_t>& groups, std::int64_t layers) {
  std::vector<LayerPlace> places;
  if (groups.empty())
    for (std::int64_t i = 0; i < layers; ++i) places.push_back({0, i});
  for (const std::int64_t group : groups) {
    const auto before = std::count_if(places.begin(), places.end(), [&](const auto& one) { return one.group == group; });
    if (group < 0 || group >= static_cast<std::int64_t>(groups.size()) || before >= layers)
      refuse("group " + std::to_string(group) + " of the KV cache cannot hold a layer more: there are " +
             std::to_string(layers) + " in a block");
    places.push_back({group, before});
  }
  return places;
}

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
  void check_blocks(const KVCache& cache, std::int64_t group, std::int64_t chunk, std::int64_t first) const {
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
  void check_blocks(const KVCache& cache, std::int64_t group, std::int64_t window) const {
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

  // pieces: (matrices, hold, span, offsets, meanings) each, stacked along the outputs.
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
                                        bool clamped) const {
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
    }
    if (!correction.is_none()) {
      Array values(correction, "correction", Kind::f32, {count});
      experts->correction.assign(values.data<float>(), values.data<float>() + count);
    }
    experts->mixture = {experts->gate_up.data(), experts->down.data(), count, top_k, groups, top_groups, group_best,
                        sigmoid, renormalize, experts->correction.empty() ? nullptr : experts->correction.data(), scale,
                        clamped ? Epilogue::gate_up_clamped : Epilogue::gate_up};
    return experts;
  }

  // A tied table is a linear of one piece, and a piece of one matrix; an untied one is a plain matrix.
  std::shared_ptr<Table> pack_table(nb::object table, bool tied) {
    auto packed = std::make_shared<Table>();
    packed->format = format_;
    if (tied) {
      nb::list pieces;
      pieces.append(table);
      packed->linear = pack_linear(pieces, nb::none());
      packed->rows = packed->linear->rows, packed->columns = packed->linear->columns;
      return packed;
    }
    Array source(table, "table");
    packed->rows = source.size(0), packed->columns = source.size(1);
    packed->memory = Memory(static_cast<std::size_t>(packed->rows * packed->columns * item()));
    const SourceMatrix matrix = source.matrix();
    run([&] { kernels_->rows.copy_rows(*pool_, format_, matrix, packed->columns, packed->memory.data()); });
    return packed;
  }

  std::int64_t bytes_per_block(std::int64_t layers, std::int64_t block_size, std::int64_t kv_heads,
                               std::int64_t head_dim, bool quantized) const {
    const KVCache cache = kv_cache_of(layers, block_size, kv_heads, head_dim, format_, quantized);
    return layers * kv_heads * cache.head_lanes * 4;
  }

  // groups: of each layer of the model; none: all are in one, and `layers` are all.
  std::shared_ptr<KVCacheMemory> kv_cache(std::int64_t layers, std::int64_t block_size, std::int64_t kv_heads,
                                        std::int64_t head_dim, bool quantized, const std::vector<std::int64_t>& groups,
                                        std::int64_t blocks) const {
    if (blocks < 1) refuse("a KV cache needs at least one block");
    auto held = std::make_shared<KVCacheMemory>();
    held->cache = kv_cache_of(layers, block_size, kv_heads, head_dim, format_, quantized);
    held->format = format_;
    held->layers = places_of(groups, layers);
    for (const LayerPlace& one : held->layers) held->groups = std::max(held->groups, one.group + 1);
    held->memory =
        Memory(static_cast<std::size_t>(blocks * bytes_per_block(layers, block_size, kv_heads, head_dim, quantized)));
    held->cache.blocks = blocks;
    held->cache.data = static_cast<std::uint32_t*>(held->memory.data());
    return held;
  }

  // Whole blocks of all layers.
  void copy_blocks(KVCacheMemory& held, const std::vector<std::int64_t>& sources,
                   const std::vector<std::int64_t>& destinations) {
    const KVCache& cache = held.cache;
    if (sources.size() != destinations.size()) refuse("sources and destinations must be equally many");
    for (const auto* list : {&sources, &destinations})
      for (const std::int64_t block : *list)
        if (block < 0 || block >= cache.blocks) refuse("block " + std::to_string(block) + " is not in this KV cache");
    const std::int64_t lanes = cache.kv_heads * cache.head_lanes;
    run([&] {
      for (std::size_t i = 0; i < sources.size(); ++i)
        for (std::int64_t layer = 0; layer < cache.layers; ++layer) {
          std::uint32_t* base = cache.data + layer * cache.blocks * lanes;
          std::memmove(base + destinations[i] * lanes, base + sources[i] * lanes, lanes * 4);
        }
    });
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
    if (nb::len(given) != 5) refuse("a piece is its matrices and their layout");
    Piece piece{layout_of(given[1], given[2], given[3], given[4]), {}, {}, {}, linear.rows};
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
               nb::handle query_start, nb::handle context_len, nb::handle block_tables)
      : backend_(backend), held_(std::move(held)), cache_(held_->cache),
        metadata_(positions, query_start, context_len, block_tables),
        token_ids_(token_ids, "token_ids", Kind::i32, {metadata_.all.tokens}) {
    if (held_->format != backend.format()) refuse("this KV cache belongs to a backend of another dtype");
    if (metadata_.groups != held_->groups)
      refuse("this KV cache has " + std::to_string(held_->groups) + " groups, and there are block tables for " +
             std::to_string(metadata_.groups));
    for (std::int64_t c = 0; c < metadata_.all.chunks; ++c) {
      for (std::int64_t g = 0; g < metadata_.groups; ++g)
        metadata_.check_blocks(cache_, g, c, metadata_.all.context_len[c]);
      past_position_ = std::max(past_position_, metadata_.end(c));
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

  void activate(const Activation& x, const std::string& kind, Activation& out) {
    const Nonlinearity known = nonlinearity(kind);
    expect(x, "x", Kind::f32, out.columns);
    begin(out, backend_.act(), x.columns, x.rows);
    backend_.run([&] {
      rows().activate(pool(), format(), known, x.array.data<float>(), x.rows, x.columns, out.array.data());
    });
  }

  void add(const Activation& x, const Vector* norm, float eps, float factor, Activation& out) {
    expect(x, "x", Kind::f32, norm ? norm->array.size(0) : out.columns);
    begin(out, Kind::f32, x.columns, x.rows);
    backend_.run([&] {
      rows().add(pool(), x.array.data<float>(), numbers(norm), eps, factor, x.rows, x.columns, out.array.data<float>());
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
    if (known == Nonlinearity::relu2) refuse("gate_up multiplies by silu or gelu_tanh, not by relu2");
    product(x, weight, known == Nonlinearity::silu ? Epilogue::gate_up : Epilogue::gate_up_gelu, out);
  }

  void product(const Activation& x, const Linear& linear, Epilogue epilogue, Activation& out) {
    const bool gated = epilogue == Epilogue::gate_up || epilogue == Epilogue::gate_up_gelu;
    same_format(linear.format);
    if (linear.gate_up != gated) refuse("weights of gate and up go with gate_up, others with linear");
    expect(x, "x", backend_.act(), linear.columns);
    begin(out, gated ? backend_.act() : Kind::f32, linear.rows, x.rows);
    backend_.run([&] {
      for (const Piece& piece : linear.pieces) {
        const Share all{&piece.weights, 0, x.rows};
        void* to = gated ? out.array.data() : out.array.data<float>() + piece.first;
        backend_.products(piece.layout.hold).gemm(pool(), x.array.data(), &all, 1, epilogue, to);
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
      run_experts(pool(), rows(), of_gate_up, of_down, item, mixture, x.array.data(), logits.array.data<float>(),
                  x.rows, out.array.data<float>());
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
                         const Vector* k_norm, float eps, Activation& q_out) {
    const LayerPlace at = place_of(layer);
    const std::int64_t tokens = metadata_.all.tokens, dim = cache_.head_dim;
    const std::int64_t heads = qkv.columns / dim - 2 * cache_.kv_heads;
    if (qkv.kind != Kind::f32 || qkv.columns % dim != 0 || heads < 1)
      refuse("qkv must hold whole heads of float32: queries, then keys, then values");
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
    const bool q_all = over_all(q_norm, heads), k_all = over_all(k_norm, cache_.kv_heads);
    begin(q_out, backend_.act(), heads * dim, tokens);
    const Rope given{rope ? rope->cos.data<float>() : nullptr,
                     rope ? rope->sin.data<float>() : nullptr,
                     pairs,
                     rope && rope->q_scale ? rope->q_scale->data<float>() : nullptr,
                     numbers(q_norm),
                     numbers(k_norm),
                     q_all,
                     k_all,
                     eps};
    backend_.run([&] {
      rows().rope_and_write(pool(), format(), qkv.array.data<float>(), heads, cache_, at.place,
                            metadata_.of(at.group), given, q_out.array.data());
    });
  }

  void attention(const Activation& q, std::int64_t layer, float scale, std::int64_t window, Activation& out,
                 float soft_cap, const Vector* sinks) {
    const LayerPlace at = place_of(layer);
    const std::int64_t heads = q.columns / cache_.head_dim;
    expect(q, "q", backend_.act(), heads * cache_.head_dim);
    if (q.rows != metadata_.all.tokens) refuse("q must have a row for each token");
    if (!(scale > 0)) refuse("scale must be positive");
    if (!(soft_cap >= 0)) refuse("soft_cap must be positive, or 0 for none");
    if (sinks != nullptr && sinks->array.size(0) != heads) refuse("sinks must have a number for each query head");
    begin(out, backend_.act(), q.columns, q.rows);
    const ProductKernels& kernels = backend_.products(cache_.bytes ? Hold::int8 : Hold::act);
    const AttentionPlan& plan = plan_for(heads, window, at.group);
    const Scores scores{scale, soft_cap, numbers(sinks)};
    backend_.run([&] {
      kernels.attention(pool(), q.array.data(), cache_, at.place, metadata_.of(at.group), plan, scores,
                        out.array.data());
    });
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

  static Nonlinearity nonlinearity(const std::string& name) {
    if (name == "silu") return Nonlinearity::silu;
    if (name == "gelu_tanh") return Nonlinearity::gelu;
    if (name == "relu2") return Nonlinearity::relu2;
    refuse("there is no activation function " + name + "; there are silu, gelu_tanh and relu2");
  }

  void same_format(Format given) const {
    if (given != format()) refuse("these weights were packed by a backend of another dtype");
  }

  LayerPlace place_of(std::int64_t layer) const {
    if (layer < 0 || layer >= static_cast<std::int64_t>(held_->layers.size()))
      refuse("layer " + std::to_string(layer) + " is not in the KV cache");
    return held_->layers[layer];
  }

  // Work is divided alike for all groups; what the window lets queries see of a group's blocks is checked once.
  const AttentionPlan& plan_for(std::int64_t heads, std::int64_t window, std::int64_t group) {
    const auto known = std::find_if(plans_.begin(), plans_.end(), [&](const auto& plan) {
      return plan->heads == heads && plan->window == window;
    });
    if (known != plans_.end() && std::find(seen_.begin(), seen_.end(), std::pair(window, group)) != seen_.end())
      return **known;
    if (heads < 1 || heads % cache_.kv_heads != 0)
      refuse("q must hold a whole number of heads for every key/value head");
    if (window < 0) refuse("window must not be negative");
    metadata_.check_blocks(cache_, group, window);
    seen_.emplace_back(window, group);
    if (known != plans_.end()) return **known;
    auto plan = std::make_unique<AttentionPlan>(heads, window);
    backend_.run([&] { backend_.products(cache_.bytes ? Hold::int8 : Hold::act).divide(pool(), cache_, metadata_.all, *plan); });
    plans_.push_back(std::move(plan));
    return *plans_.back();
  }

  Backend& backend_;
  std::shared_ptr<KVCacheMemory> held_;
  const KVCache& cache_;
  MetadataArrays metadata_;
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
  nb::class_<Table>(m, "Table")
      .def_ro("rows", &Table::rows)
      .def_ro("columns", &Table::columns)
      .def_prop_ro("nbytes", &Table::nbytes)
      .def_ro("linear", &Table::linear);
  nb::class_<KVCacheMemory>(m, "KVCache", nb::dynamic_attr())
      .def_prop_ro("num_blocks", [](const KVCacheMemory& held) { return held.cache.blocks; })
      .def_prop_ro("nbytes", [](const KVCacheMemory& held) { return held.memory.bytes(); });
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
           nb::arg("top_groups"), nb::arg("group_best"), nb::arg("scale"), nb::arg("clamped"))
      .def("pack_table", &Backend::pack_table)
      .def("bytes_per_block", &Backend::bytes_per_block)
      .def("kv_cache", &Backend::kv_cache)
      .def("copy_blocks", &Backend::copy_blocks)
      .def("sample", &Backend::sample)
      .def("score", &Backend::score)
      .def("read_bandwidth", &Backend::read_bandwidth)
      .def("peak", &Backend::peak);
  nb::class_<PreparedPass>(m, "PreparedPass")
      .def(nb::init<Backend&, std::shared_ptr<KVCacheMemory>, nb::handle, nb::handle, nb::handle, nb::handle,
                    nb::handle>(),
           nb::keep_alive<1, 2>())
      .def("embed", &PreparedPass::embed)
      .def("rms_norm", &PreparedPass::rms_norm)
      .def("layer_norm", &PreparedPass::layer_norm, nb::arg("x"), nb::arg("weight"), nb::arg("bias").none(),
           nb::arg("eps"), nb::arg("out"))
      .def("to_act", &PreparedPass::to_act)
      .def("activate", &PreparedPass::activate)
      .def("add", &PreparedPass::add, nb::arg("x"), nb::arg("norm").none(), nb::arg("eps"), nb::arg("factor"),
           nb::arg("out"))
      .def("scale", &PreparedPass::scale)
      .def("soft_cap", &PreparedPass::soft_cap)
      .def("linear", &PreparedPass::linear)
      .def("linear_residual", &PreparedPass::linear_residual)
      .def("gate_up", &PreparedPass::gate_up, nb::arg("x"), nb::arg("weight"), nb::arg("out"),
           nb::arg("activation") = "silu")
      .def("experts", &PreparedPass::experts)
      .def("add_gated", &PreparedPass::add_gated)
      .def("rope_and_write_kv", &PreparedPass::rope_and_write_kv, nb::arg("qkv"), nb::arg("layer"),
           nb::arg("rope").none(), nb::arg("q_norm").none(), nb::arg("k_norm").none(), nb::arg("eps"), nb::arg("q_out"))
      .def("attention", &PreparedPass::attention, nb::arg("q"), nb::arg("layer"), nb::arg("scale"), nb::arg("window"),
           nb::arg("out"), nb::arg("soft_cap") = 0.0f, nb::arg("sinks").none() = nb::none())
      .def("gather", &PreparedPass::gather);
}
