// The Python face of the kernels.
//
// Knows numpy arrays (through the buffer protocol) and checks everything about them once per call: kernels trust their
// arguments, and a wrong shape must end as a ValueError with a sentence, never as a crash. The interpreter lock is
// released while kernels run. Knows nothing of what the kernels compute.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "memory.h"
#include "pool.h"
#include "types.h"

namespace nb = nanobind;

namespace inflight {
namespace {

[[noreturn]] void refuse(const std::string& sentence) { throw nb::value_error(sentence.c_str()); }

// Element types, by their letters in the buffer protocol.
enum class Kind { f32, f16, u16, i32, u32, u64, boolean, other };

Kind kind_of(const Py_buffer& view) {
  const char* format = view.format ? view.format : "B";
  if (*format == '<' || *format == '=' || *format == '@') ++format;
  if (format[0] == 0 || format[1] != 0) return Kind::other;
  switch (format[0]) {
    case 'f': return Kind::f32;
    case 'e': return Kind::f16;
    case 'H': return Kind::u16;
    case 'i': case 'l': return view.itemsize == 4 ? Kind::i32 : Kind::other;
    case 'I': case 'L': case 'Q': return view.itemsize == 4 ? Kind::u32 : Kind::u64;
    case '?': return Kind::boolean;
    default: return Kind::other;
  }
}

const char* name_of(Kind kind) {
  constexpr const char* names[] = {"float32", "float16", "uint16", "int32", "uint32", "uint64", "bool", "another type"};
  return names[static_cast<int>(kind)];
}

constexpr std::int64_t any = -1;

// A C-contiguous array of a given type and shape, held for as long as this object lives.
class Array {
 public:
  Array(nb::handle object, const char* name, Kind kind, std::initializer_list<std::int64_t> shape,
        bool writable = false) {
    take(object, name);
    if (kind_of(view_) != kind)
      fail(name, std::string("must hold ") + name_of(kind) + ", not " + name_of(kind_of(view_)));
    bool fits = static_cast<std::size_t>(view_.ndim) == shape.size();
    for (int i = 0; fits && i < view_.ndim; ++i) {
      const std::int64_t wanted = shape.begin()[i];
      fits = wanted == any || view_.shape[i] == wanted;
    }
    if (!fits) {
      std::string wanted;
      for (const std::int64_t n : shape) wanted += (wanted.empty() ? "" : ", ") + (n == any ? "any" : std::to_string(n));
      fail(name, "must have shape [" + wanted + "], not [" + shape_text() + "]");
    }
    if (writable && view_.readonly) fail(name, "must be writable");
  }
  // A weight matrix of any of the types that checkpoints have.
  Array(nb::handle object, const char* name) {
    take(object, name);
    if (view_.ndim != 2) fail(name, "must have two dimensions, not shape [" + shape_text() + "]");
    const Kind kind = kind_of(view_);
    if (kind != Kind::f32 && kind != Kind::f16 && kind != Kind::u16)
      fail(name, std::string("must hold float32, float16 or uint16 (bf16), not ") + name_of(kind));
  }
  ~Array() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  Array(const Array&) = delete;
  Array(Array&& other) noexcept : view_(other.view_) { other.view_.obj = nullptr; }

  template <class T = void>
  T* data() const { return static_cast<T*>(view_.buf); }
  std::int64_t size(int axis) const { return view_.shape[axis]; }
  SourceMatrix matrix() const {
    const Kind kind = kind_of(view_);
    return {view_.buf, size(0), kind == Kind::f32 ? Source::f32 : kind == Kind::f16 ? Source::f16 : Source::bf16};
  }

 private:
  void take(nb::handle object, const char* name) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_FORMAT | PyBUF_STRIDES) != 0) {
      PyErr_Clear();
      view_.obj = nullptr;
      refuse(std::string(name) + " must be a numpy array");
    }
    if (!PyBuffer_IsContiguous(&view_, 'C')) fail(name, "must be contiguous");
  }
  // The destructor does not run when a constructor throws.
  [[noreturn]] void fail(const char* name, const std::string& why) {
    PyBuffer_Release(&view_);
    view_.obj = nullptr;
    refuse(std::string(name) + " " + why);
  }
  std::string shape_text() const {
    std::string text;
    for (int i = 0; i < view_.ndim; ++i) text += (i ? ", " : "") + std::to_string(view_.shape[i]);
    return text;
  }

  Py_buffer view_{};
};

std::optional<Array> optional_array(nb::handle object, const char* name, Kind kind,
                                    std::initializer_list<std::int64_t> shape) {
  std::optional<Array> array;
  if (!object.is_none()) array.emplace(object, name, kind, shape);
  return array;
}

// Packed weights and what they own.
struct Linear {
  Weights weights{};
  Format format{};
  Memory memory;
  std::vector<float> bias, scales;
  std::int64_t nbytes() const {
    return static_cast<std::int64_t>(memory.bytes() + (bias.size() + scales.size()) * sizeof(float));
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

Arena arena_of(std::int64_t layers, std::int64_t block_size, std::int64_t kv_heads, std::int64_t head_dim,
               Format format, bool bytes) {
  if (layers < 1 || kv_heads < 1 || block_size < 16 || block_size % 16 != 0 || head_dim < 2 || head_dim % 2 != 0 ||
      head_dim > most_head_dim)
    refuse("a KV shape needs layers and heads, a block size that is a multiple of 16, and an even head dimension of at "
           "most " + std::to_string(most_head_dim));
  Arena arena{};
  arena.layers = layers, arena.block_size = block_size, arena.kv_heads = kv_heads, arena.head_dim = head_dim;
  arena.padded_dim = (head_dim + panel - 1) / panel * panel;
  const std::int64_t values = bytes ? 4 : per_step(format);
  arena.bytes = bytes;
  arena.key_lanes = (head_dim + values - 1) / values * block_size;
  arena.scales_at = arena.key_lanes + block_size / values * arena.padded_dim;
  arena.head_lanes = arena.scales_at + (bytes ? 2 * block_size : 0);
  return arena;
}

struct ArenaMemory {
  Arena arena{};
  Format format{};
  Memory memory;

  void copy_blocks(const std::vector<std::int64_t>& sources, const std::vector<std::int64_t>& destinations) {
    if (sources.size() != destinations.size()) refuse("sources and destinations must be equally many");
    for (const auto* list : {&sources, &destinations})
      for (const std::int64_t block : *list)
        if (block < 0 || block >= arena.blocks) refuse("block " + std::to_string(block) + " is not in this arena");
    const std::int64_t lanes = arena.kv_heads * arena.head_lanes;
    nb::gil_scoped_release release;
    for (std::size_t i = 0; i < sources.size(); ++i)
      for (std::int64_t layer = 0; layer < arena.layers; ++layer) {
        std::uint32_t* base = arena.data + layer * arena.blocks * lanes;
        std::memmove(base + destinations[i] * lanes, base + sources[i] * lanes, lanes * 4);
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

// The arrays of a StepLayout.
struct LayoutArrays {
  Array positions, offsets, starts, tables;
  Layout layout;

  LayoutArrays(nb::handle positions_, nb::handle offsets_, nb::handle starts_, nb::handle tables_, std::int64_t tokens)
      : positions(positions_, "positions", Kind::i32, {tokens}),
        offsets(offsets_, "offsets", Kind::i32, {any}),
        starts(starts_, "starts", Kind::i32, {chunks()}),
        tables(tables_, "tables", Kind::i32, {chunks(), any}) {
    layout = {positions.data<std::int32_t>(), offsets.data<std::int32_t>(), starts.data<std::int32_t>(),
              tables.data<std::int32_t>(), tokens, offsets.size(0) - 1, tables.size(1)};
    if (layout.offsets[0] != 0 || layout.offsets[layout.chunks] != tokens)
      refuse("offsets must begin with 0 and end with the number of tokens");
    for (std::int64_t c = 0; c < layout.chunks; ++c)
      if (layout.offsets[c] > layout.offsets[c + 1] || layout.starts[c] < 0)
        refuse("offsets must ascend, and starts must not be negative");
  }

  std::int64_t chunks() const {
    if (offsets.size(0) < 1) refuse("offsets must have one element more than there are chunks");
    return offsets.size(0) - 1;
  }

  // Every block that holds positions [first seen, end) of a chunk must exist.
  void check_blocks(const Arena& arena, bool written_only, std::int64_t window) const {
    for (std::int64_t c = 0; c < layout.chunks; ++c) {
      const std::int64_t length = layout.offsets[c + 1] - layout.offsets[c], end = layout.starts[c] + length;
      if (length == 0) continue;
      std::int64_t first = written_only ? layout.starts[c] : 0;
      if (!written_only && window > 0 && layout.starts[c] + 1 > window) first = layout.starts[c] + 1 - window;
      if ((end - 1) / arena.block_size >= layout.table_width)
        refuse("the block table of chunk " + std::to_string(c) + " is too short for its positions");
      for (std::int64_t b = first / arena.block_size; b <= (end - 1) / arena.block_size; ++b) {
        const std::int64_t id = layout.tables[c * layout.table_width + b];
        if (id < 0 || id >= arena.blocks)
          refuse("the block table of chunk " + std::to_string(c) + " names block " + std::to_string(id) +
                 ", which is not in the arena");
      }
    }
  }

  void check_positions() const {
    for (std::int64_t c = 0; c < layout.chunks; ++c)
      for (std::int64_t t = layout.offsets[c]; t < layout.offsets[c + 1]; ++t)
        if (layout.positions[t] != layout.starts[c] + t - layout.offsets[c])
          refuse("positions of a chunk must rise by one from its start");
  }
};

class Ops {
 public:
  Ops(const std::string& dtype, int threads, const std::string& isa, const std::vector<int>& cores) {
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

  std::shared_ptr<Linear> pack_linear(nb::list parts, nb::handle bias, bool quantized) {
    std::vector<Array> arrays;
    std::vector<SourceMatrix> matrices;
    std::int64_t rows = 0;
    for (nb::handle part : parts) {
      arrays.emplace_back(part, "a weight matrix");
      if (arrays.back().size(1) != arrays[0].size(1)) refuse("stacked weight matrices must have equal columns");
      matrices.push_back(arrays.back().matrix());
      rows += arrays.back().size(0);
    }
    if (arrays.empty()) refuse("a linear needs at least one weight matrix");
    auto linear = pack(matrices, rows, arrays[0].size(1), false, quantized);
    if (!bias.is_none()) {
      Array values(bias, "bias", Kind::f32, {rows});
      linear->bias.assign(values.data<float>(), values.data<float>() + rows);
      linear->weights.bias = linear->bias.data();
    }
    return linear;
  }

  std::shared_ptr<Linear> pack_gated(nb::handle gate, nb::handle up, bool quantized) {
    Array gates(gate, "gate"), ups(up, "up");
    if (gates.size(0) != ups.size(0) || gates.size(1) != ups.size(1)) refuse("gate and up must have equal shapes");
    return pack({gates.matrix(), ups.matrix()}, gates.size(0), gates.size(1), true, quantized);
  }

  std::shared_ptr<Table> pack_table(nb::handle table, bool tied, bool quantized) {
    if (quantized && !tied) refuse("only a tied table, which is a product too, can be quantized");
    Array source(table, "table");
    auto packed = std::make_shared<Table>();
    packed->rows = source.size(0), packed->columns = source.size(1), packed->format = format_;
    if (tied) {
      packed->linear = pack({source.matrix()}, packed->rows, packed->columns, false, quantized);
    } else {
      packed->memory = Memory(static_cast<std::size_t>(packed->rows * packed->columns * item()));
      const SourceMatrix matrix = source.matrix();
      run([&] { kernels_->rows.copy_rows(*pool_, format_, matrix, packed->columns, packed->memory.data()); });
    }
    return packed;
  }

  std::int64_t bytes_per_block(std::int64_t layers, std::int64_t block_size, std::int64_t kv_heads,
                               std::int64_t head_dim, bool quantized) const {
    const Arena arena = arena_of(layers, block_size, kv_heads, head_dim, format_, quantized);
    return layers * kv_heads * arena.head_lanes * 4;
  }

  std::shared_ptr<ArenaMemory> kv_arena(std::int64_t layers, std::int64_t block_size, std::int64_t kv_heads,
                                        std::int64_t head_dim, bool quantized, std::int64_t blocks) const {
    if (blocks < 1) refuse("an arena needs at least one block");
    auto held = std::make_shared<ArenaMemory>();
    held->arena = arena_of(layers, block_size, kv_heads, head_dim, format_, quantized);
    held->format = format_;
    held->memory =
        Memory(static_cast<std::size_t>(blocks * bytes_per_block(layers, block_size, kv_heads, head_dim, quantized)));
    held->arena.blocks = blocks;
    held->arena.data = static_cast<std::uint32_t*>(held->memory.data());
    return held;
  }

  void embed(const Table& table, nb::handle token_ids, nb::handle out) {
    same_format(table.format);
    Array ids(token_ids, "token_ids", Kind::i32, {any});
    Array to(out, "out", Kind::f32, {ids.size(0), table.columns}, true);
    for (std::int64_t t = 0; t < ids.size(0); ++t) {
      const std::int32_t id = ids.data<std::int32_t>()[t];
      if (id < 0 || id >= table.rows)
        refuse("token id " + std::to_string(id) + " is outside the table of " + std::to_string(table.rows));
    }
    run([&] {
      if (table.linear) {
        kernels_->rows.embed_packed(*pool_, format_, table.linear->weights, ids.data<std::int32_t>(), ids.size(0),
                                    to.data<float>());
      } else {
        kernels_->rows.embed_rows(*pool_, format_, table.memory.data(), table.columns, ids.data<std::int32_t>(),
                                  ids.size(0), to.data<float>());
      }
    });
  }

  void rms_norm(nb::handle x, nb::handle weight, float eps, nb::handle out) {
    Array from(x, "x", Kind::f32, {any, any});
    Array scale(weight, "weight", Kind::f32, {from.size(1)});
    Array to(out, "out", act_, {from.size(0), from.size(1)}, true);
    run([&] {
      kernels_->rows.rms_norm(*pool_, format_, from.data<float>(), scale.data<float>(), eps, from.size(0),
                              from.size(1), to.data());
    });
  }

  void gemm(nb::handle x, const Linear& linear, nb::handle out, Epilogue epilogue) {
    same_format(linear.format);
    if (linear.weights.gated != (epilogue == Epilogue::gated)) refuse("gated weights go with gated, others with linear");
    Array from(x, "x", act_, {any, linear.weights.columns});
    Array to(out, "out", epilogue == Epilogue::gated ? act_ : Kind::f32, {from.size(0), linear.weights.rows}, true);
    const ProductKernels& kernels = products(linear.weights.scales != nullptr);
    run([&] { kernels.gemm(*pool_, from.data(), linear.weights, from.size(0), epilogue, to.data()); });
  }

  void rope_and_write_kv(nb::handle qkv, const ArenaMemory& held, std::int64_t layer, nb::handle positions,
                         nb::handle offsets, nb::handle starts, nb::handle tables, nb::handle cos, nb::handle sin,
                         nb::handle q_norm, nb::handle k_norm, float eps, nb::handle q_out) {
    const Arena& arena = held.arena;
    check_layer(held, layer);
    Array from(qkv, "qkv", Kind::f32, {any, any});
    const std::int64_t tokens = from.size(0), dim = arena.head_dim;
    const std::int64_t heads = from.size(1) / dim - 2 * arena.kv_heads;
    if (from.size(1) % dim != 0 || heads < 1) refuse("qkv must hold whole heads: queries, then keys, then values");
    LayoutArrays layout(positions, offsets, starts, tables, tokens);
    layout.check_positions();
    layout.check_blocks(arena, true, 0);
    Array cosines(cos, "cos", Kind::f32, {any, dim / 2}), sines(sin, "sin", Kind::f32, {cosines.size(0), dim / 2});
    for (std::int64_t t = 0; t < tokens; ++t)
      if (layout.layout.positions[t] >= cosines.size(0)) refuse("the rope table is too short for these positions");
    const auto q_weight = optional_array(q_norm, "q_norm", Kind::f32, {dim});
    const auto k_weight = optional_array(k_norm, "k_norm", Kind::f32, {dim});
    Array to(q_out, "q_out", act_, {tokens, heads * dim}, true);
    const Rope rope{cosines.data<float>(), sines.data<float>(), q_weight ? q_weight->data<float>() : nullptr,
                    k_weight ? k_weight->data<float>() : nullptr, eps};
    run([&] {
      kernels_->rows.rope_and_write(*pool_, format_, from.data<float>(), heads, arena, layer, layout.layout, rope,
                                    to.data());
    });
  }

  void attention(nb::handle q, const ArenaMemory& held, std::int64_t layer, nb::handle positions, nb::handle offsets,
                 nb::handle starts, nb::handle tables, float scale, std::int64_t window, nb::handle out) {
    const Arena& arena = held.arena;
    check_layer(held, layer);
    Array from(q, "q", act_, {any, any});
    const std::int64_t heads = from.size(1) / arena.head_dim;
    if (from.size(1) % arena.head_dim != 0 || heads < 1 || heads % arena.kv_heads != 0)
      refuse("q must hold a whole number of heads for every key/value head");
    if (window < 0) refuse("window must not be negative");
    if (!(scale > 0)) refuse("scale must be positive");
    LayoutArrays layout(positions, offsets, starts, tables, from.size(0));
    layout.check_blocks(arena, false, window);
    Array to(out, "out", act_, {from.size(0), from.size(1)}, true);
    const ProductKernels& kernels = products(arena.bytes);
    run([&] {
      kernels.attention(*pool_, from.data(), heads, arena, layer, layout.layout, scale, window, to.data());
    });
  }

  void sample(nb::handle logits, nb::handle temperature, nb::handle top_k, nb::handle top_p, nb::handle min_p,
              nb::handle repetition, nb::handle presence, nb::handle frequency, nb::handle seed,
              nb::handle sample_index, nb::handle draw_index, nb::sequence histories, nb::handle prompt_lengths,
              nb::handle bias_offsets, nb::handle bias_ids, nb::handle bias_values, nb::handle want_logprobs,
              nb::handle top_logprobs, nb::handle token_ids, nb::handle logprobs, nb::handle top_ids,
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

    std::vector<std::optional<Array>> held(static_cast<std::size_t>(n));
    std::vector<const std::int32_t*> pointers(static_cast<std::size_t>(n), nullptr);
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(n), 0);
    if (static_cast<std::int64_t>(nb::len(histories)) != n) refuse("histories must have one entry per row");
    std::size_t row = 0;
    for (nb::handle history : histories) {
      if (!history.is_none()) {
        held[row].emplace(history, "a history", Kind::i32, std::initializer_list<std::int64_t>{any});
        pointers[row] = held[row]->data<std::int32_t>();
        lengths[row] = held[row]->size(0);
      }
      ++row;
    }
    const Sampling s{a_temperature.data<float>(), a_top_p.data<float>(), a_min_p.data<float>(),
                     a_repetition.data<float>(), a_presence.data<float>(), a_frequency.data<float>(),
                     a_top_k.data<std::int32_t>(), a_lengths.data<std::int32_t>(), at, a_ids.data<std::int32_t>(),
                     a_seed.data<std::uint64_t>(), a_sample.data<std::uint32_t>(), a_draw.data<std::uint32_t>(),
                     a_want.data<bool>(), a_values.data<float>(), pointers.data(), lengths.data(),
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

 private:
  template <class Work>
  void run(Work&& work) {
    nb::gil_scoped_release release;
    std::lock_guard lock(turn_);
    work();
  }

  // For weights, or keys and values, that are int8 or as activations are.
  const ProductKernels& products(bool int8) const {
    if (format_ == Format::bf16) return int8 ? kernels_->int8_bf16 : kernels_->bf16;
    return int8 ? kernels_->int8_f32 : kernels_->f32;
  }

  std::int64_t item() const { return format_ == Format::bf16 ? 2 : 4; }

  void same_format(Format format) const {
    if (format != format_) refuse("these weights were packed by an op set of another dtype");
  }

  void check_layer(const ArenaMemory& held, std::int64_t layer) const {
    if (held.format != format_) refuse("this arena belongs to an op set of another dtype");
    if (layer < 0 || layer >= held.arena.layers) refuse("layer " + std::to_string(layer) + " is not in the arena");
  }

  std::shared_ptr<Linear> pack(const std::vector<SourceMatrix>& parts, std::int64_t rows, std::int64_t columns,
                               bool gated, bool quantized) {
    if (quantized && columns > most_int8_columns)
      refuse("sums of int8 products fit 32 bits over " + std::to_string(most_int8_columns) + " columns, not over " +
             std::to_string(columns));
    auto linear = std::make_shared<Linear>();
    linear->format = format_;
    Weights& w = linear->weights;
    w.rows = rows, w.columns = columns, w.gated = gated;
    const std::int64_t values = quantized ? 4 : per_step(format_);
    w.steps = (columns + values - 1) / values;
    w.groups = ((gated ? 2 : 1) * ((rows + panel - 1) / panel * panel) + group_lanes - 1) / group_lanes;
    linear->memory = shelf_.take(static_cast<std::size_t>(w.groups * w.steps * group_lanes * 4));
    w.data = static_cast<std::uint32_t*>(linear->memory.data());
    if (quantized) linear->scales.resize(static_cast<std::size_t>(w.groups * group_lanes));
    w.scales = quantized ? linear->scales.data() : nullptr;
    run([&] { kernels_->rows.pack(*pool_, format_, parts.data(), w); });
    return linear;
  }

  Format format_{};
  Kind act_{};
  const Kernels* kernels_ = nullptr;
  std::unique_ptr<Pool> pool_;
  std::mutex turn_;  // calls from several Python threads take turns
  Shelf shelf_;  // of packed weights
  Memory probe_;
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
      .def_prop_ro("rows", [](const Linear& l) { return l.weights.rows; })
      .def_prop_ro("columns", [](const Linear& l) { return l.weights.columns; })
      .def_prop_ro("nbytes", &Linear::nbytes);
  nb::class_<Table>(m, "Table")
      .def_ro("rows", &Table::rows)
      .def_ro("columns", &Table::columns)
      .def_prop_ro("nbytes", &Table::nbytes)
      .def_ro("linear", &Table::linear);
  nb::class_<ArenaMemory>(m, "Arena", nb::dynamic_attr())
      .def_prop_ro("num_blocks", [](const ArenaMemory& a) { return a.arena.blocks; })
      .def_prop_ro("nbytes", [](const ArenaMemory& a) { return a.memory.bytes(); })
      .def("copy_blocks", &ArenaMemory::copy_blocks);

  nb::class_<Ops>(m, "Ops")
      .def(nb::init<const std::string&, int, const std::string&, const std::vector<int>&>(), nb::arg("dtype"),
           nb::arg("threads"), nb::arg("isa"), nb::arg("cores"))
      .def_prop_ro("isa", &Ops::isa)
      .def("pack_linear", &Ops::pack_linear, nb::arg("parts"), nb::arg("bias").none(),
           nb::arg("quantized"))
      .def("pack_gated", &Ops::pack_gated)
      .def("pack_table", &Ops::pack_table)
      .def("bytes_per_block", &Ops::bytes_per_block)
      .def("kv_arena", &Ops::kv_arena)
      .def("embed", &Ops::embed)
      .def("rms_norm", &Ops::rms_norm)
      .def("linear", [](Ops& o, nb::handle x, const Linear& w, nb::handle out) { o.gemm(x, w, out, Epilogue::store); })
      .def("linear_add",
           [](Ops& o, nb::handle x, const Linear& w, nb::handle out) { o.gemm(x, w, out, Epilogue::add); })
      .def("gated", [](Ops& o, nb::handle x, const Linear& w, nb::handle out) { o.gemm(x, w, out, Epilogue::gated); })
      .def("rope_and_write_kv", &Ops::rope_and_write_kv, nb::arg("qkv"), nb::arg("arena"), nb::arg("layer"),
           nb::arg("positions"), nb::arg("offsets"), nb::arg("starts"), nb::arg("tables"), nb::arg("cos"),
           nb::arg("sin"), nb::arg("q_norm").none(), nb::arg("k_norm").none(), nb::arg("eps"), nb::arg("q_out"))
      .def("attention", &Ops::attention)
      .def("sample", &Ops::sample)
      .def("score", &Ops::score)
      .def("read_bandwidth", &Ops::read_bandwidth)
      .def("peak", &Ops::peak);
}
