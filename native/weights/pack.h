// A checkpoint's matrices → packed weights, in the held format, int8 or int4, in the layout of types.h that gemm.h
// reads.
//
// A matrix is read where it lies, a group of 32 outputs at a time, so that packing takes no memory beside the result.
#pragma once
#include "gemm/quantize.h"
#include "isa/float16.h"
#include "pool/parallel.h"
#include "types.h"
#include "weights/blocks.h"
#include "weights/group_scales.h"

namespace inflight::INFLIGHT_ISA {

// One value of a checkpoint → float32.
INLINE float read(const SourceMatrix& m, std::int64_t at) {
  if (m.kind == Source::f32) return static_cast<const float*>(m.data)[at];
  const std::uint16_t half = static_cast<const std::uint16_t*>(m.data)[at];
  return m.kind == Source::bf16 ? from_bf16(half) : from_f16(half);
}

// Whole blocks from `at` on → the held format.
template <class Value>
void convert_blocks(const SourceMatrix& m, std::int64_t at, std::int64_t count, Value* to) {
  if constexpr (sizeof(Value) == 4) {
    numbers(m, at, count, to);
  } else {
    alignas(64) float values[max_block];
    for (std::int64_t done = 0; done < count; done += max_block) {
      const std::int64_t many = count - done < max_block ? count - done : max_block;
      numbers(m, at + done, many, values);
      for (std::int64_t i = 0; i < many; i += lanes) store_bf16(to + done + i, load<vf>(values + i));
    }
  }
}

// `count` values from `at` on → the held format.
template <class Value>
void convert(const SourceMatrix& m, std::int64_t at, std::int64_t count, Value* to) {
  if (m.kind == Source::blocks) return convert_blocks(m, at, count, to);
  const auto* halves = static_cast<const std::uint16_t*>(m.data) + at;
  if constexpr (sizeof(Value) == 2) {
    if (m.kind == Source::bf16) {
      std::memcpy(to, halves, count * sizeof(Value));
    } else {
      for (std::int64_t i = 0; i < count; ++i) to[i] = to_bf16(read(m, at + i));
    }
  } else if (m.kind == Source::f32) {
    std::memcpy(to, static_cast<const float*>(m.data) + at, count * sizeof(Value));
  } else {
    std::int64_t i = 0;
    for (; i + lanes <= count; i += lanes)
      store(to + i, m.kind == Source::bf16 ? load_bf16(halves + i) : load_f16(halves + i));
    for (; i < count; ++i) to[i] = read(m, at + i);
  }
}

// Where the weights of a lane of a group stand: a row of one of the stacked parts (gate_up: panel 0 of gate, panel 1
// of up), or nowhere past the last.
struct Place {
  const SourceMatrix* part;
  std::int64_t row;
};

INLINE Place place_of(const SourceMatrix* parts, const Weights& w, std::int64_t group, std::int64_t lane) {
  const std::int64_t turn = lane / panel;
  std::int64_t row = w.gate_up ? group * panel + lane % panel : group * group_lanes + lane;
  if (row >= w.rows) return {nullptr, 0};
  const SourceMatrix* part = w.gate_up ? parts + turn : parts;
  while (!w.gate_up && row >= part->rows) row -= part->rows, ++part;
  return {part, row};
}

constexpr std::int64_t piece = 256;  // values of a row that are converted at a time: 32 rows of them stay in L1

// A piece of 32 rows, at a stride of `held` values → lanes of its steps.
INLINE void interleave(const void* held, std::int64_t row_bytes, std::int64_t steps, std::uint32_t* out) {
  for (std::int64_t s = 0; s < steps; ++s)
    for (std::int64_t lane = 0; lane < group_lanes; ++lane)
      std::memcpy(out + s * group_lanes + lane, static_cast<const char*>(held) + lane * row_bytes + s * 4, 4);
}

template <class Value>
void pack_weights(Pool& pool, const SourceMatrix* parts, const Weights& w) {
  constexpr std::int64_t per_step = 4 / sizeof(Value);
  parallel_for(pool, w.groups, [&](std::int64_t group, int) {
    alignas(64) Value held[group_lanes][piece];
    std::uint32_t* out = w.data + group * w.steps * group_lanes;
    for (std::int64_t k = 0; k < w.columns; k += piece) {
      const std::int64_t width = w.columns - k < piece ? w.columns - k : piece;
      for (std::int64_t lane = 0; lane < group_lanes; ++lane) {
        const Place place = place_of(parts, w, group, lane);
        std::int64_t filled = 0;
        if (place.part) convert(*place.part, place.row * w.columns + k, filled = width, held[lane]);
        for (; filled < piece; ++filled) held[lane][filled] = 0;
      }
      interleave(held, sizeof held[0], (width + per_step - 1) / per_step, out + k / per_step * group_lanes);
    }
  });
}

// A group of inputs of 32 outputs on its way to the layout of types.h: `codes` [inputs][32], as many bits each.
template <int bits>
struct GroupCodes {
  static constexpr std::int32_t zero = bits == 4 ? 8 : 128;
  static constexpr std::int64_t per_line = 32 / bits;
  alignas(64) std::int32_t codes[max_group][group_lanes];
  alignas(64) float values[max_group * group_lanes];

  void clear() {
    std::memset(values, 0, sizeof values);
    for (auto& row : codes)
      for (std::int32_t& code : row) code = zero;
  }
  // A lane's inputs as they are held: of 8 bits with their sign.
  void take(const std::uint8_t* from, std::int64_t width, std::int64_t lane) {
    for (std::int64_t k = 0; k < width; ++k) codes[k][lane] = bits == 4 ? from[k] & 15 : from[k] ^ 128;
  }
  // A lane's inputs that are yet to be quantized.
  void take(const SourceMatrix& m, std::int64_t at, std::int64_t width, std::int64_t lane) {
    float row[max_group];
    convert(m, at, width, row);
    for (std::int64_t k = 0; k < width; ++k) values[k * group_lanes + lane] = row[k];
  }
  // The inputs of a whole span mixed with each other, as keys are (quantize.h): lanes are outputs here, so that each is
  // transformed by itself, in the same order.
  void mix() {
    for (int distance = 1; distance < max_span; distance *= 2)
      for (int k = 0; k < max_span; k = (k + 1) & distance ? k + 1 + distance : k + 1)
        for (int v = 0; v < group_lanes; v += lanes) {
          float *first = values + k * group_lanes + v, *second = first + distance * group_lanes;
          const vf a = load<vf>(first), b = load<vf>(second), by = all(2 * distance == max_span ? 0.25f : 1.0f);
          store(first, (a + b) * by);
          store(second, (a - b) * by);
        }
  }
  // Those lanes of `plain`; scales, offsets [32].
  void quantize(std::int64_t inputs, const vi* plain, float* scales, float* offsets) {
    for (int v = 0; v < group_lanes / lanes; ++v) {
      if constexpr (bits == 4) {
        const SpanSearch found = search(values + v * lanes, inputs);
        store(scales + v * lanes, found.scale);
        store(offsets + v * lanes, found.offset);
        round(inputs, v, plain[v], [&](vf x) { return SpanSearch::code(found.units(x), found.steps); });
      } else {
        const vf magic = all(12582912.0f);  // 1.5 · 2²³: adding it leaves the nearest integer in the low bits
        const SpanScales found = scales_of(values + v * lanes, inputs);
        store(scales + v * lanes, found.scale);
        store(offsets + v * lanes, vf{});
        round(inputs, v, plain[v], [&](vf x) { return (found.units(x) + magic) - magic; });
      }
    }
  }
  void write(std::int64_t first, std::int64_t inputs, std::uint32_t* out) const {
    for (std::int64_t line = first / per_line; line < (first + inputs) / per_line; ++line, out += group_lanes)
      for (int v = 0; v < group_lanes; v += lanes) {
        vu lane{};
        for (int k = 0; k < per_line; ++k) lane |= load<vu>(codes[per_line * line + k] + v) << (k % 4 * 8 + k / 4 * 4);
        store(out + v, lane);
      }
  }

 private:
  template <class Code>
  void round(std::int64_t inputs, int v, vi plain, Code&& code) {
    for (std::int64_t k = 0; k < inputs; ++k) {
      std::int32_t* to = codes[k] + v * lanes;
      const vi found = __builtin_convertvector(code(load<vf>(values + k * group_lanes + v * lanes)), vi) + zero;
      store(to, plain ? found : load<vi>(to));
    }
  }
};

// A row of blocks → its lane of a group; returns the factor of its scales. scales: [2][spans], to work in.
inline float pack_lane(const SourceMatrix& m, std::int64_t row, const Weights& w, std::int64_t lane,
                       std::uint32_t* first, float* scales) {
  const std::int64_t spans = w.steps;
  float* offsets = scales + spans;
  with_type(m.blocks.type, [&](auto known) {
    constexpr BlockType type = decltype(known)::value;
    const std::int64_t groups = m.blocks.values / group_inputs(type);
    const auto* block = static_cast<const std::uint8_t*>(m.data) + row * (spans / groups) * m.blocks.nbytes;
    std::uint32_t* out = first + w.spans.first_codes() + lane;
    for (std::int64_t s = 0; s < spans; s += groups, block += m.blocks.nbytes) {
      group_scales<type>(block, scales + s, offsets + s);
      if constexpr (has_codes(type)) {
        for (std::int64_t g = 0; g < groups; ++g, out += w.step_lanes)
          for (std::int64_t line = 0; line < 4; ++line) out[line * group_lanes] = code_line<type>(block, g, line);
      } else {
        alignas(4) std::int8_t whole[max_block];
        whole_numbers<type>(block, whole);
        constexpr std::int64_t lines = group_inputs(type) / 4;
        for (std::int64_t g = 0; g < groups; ++g, out += w.step_lanes)
          for (std::int64_t line = 0; line < lines; ++line)
            out[line * group_lanes] =
                word_at(reinterpret_cast<const std::uint8_t*>(whole) + 4 * (g * lines + line)) ^ 0x80808080u;
      }
    }
  });
  auto* to = reinterpret_cast<std::uint16_t*>(first) + lane;
  return hold_scales(scales, spans, w.spans.offsets, 1, to, 2 * w.step_lanes);
}

// The lanes of a group of outputs that are plain, which are quantized, and those that come as codes. scales:
// [2][spans][32], of which the second are offsets, to work in.
template <int bits>
void pack_lanes(const Place* places, const Weights& w, std::uint32_t* first, float* factors, float* scales) {
  const std::int64_t spans = w.steps, inputs = w.group_spans * w.spans.inputs;
  const std::int64_t groups = (spans + w.group_spans - 1) / w.group_spans;
  vi plain[group_lanes / lanes]{};
  bool any_plain = false;
  for (std::int64_t lane = 0; lane < group_lanes; ++lane) {
    if (!places[lane].part || places[lane].part->kind == Source::codes || places[lane].part->kind == Source::blocks)
      continue;
    plain[lane / lanes][lane % lanes] = -1;
    any_plain = true;
  }
  GroupCodes<bits> group;
  for (std::int64_t g = 0; g < groups; ++g) {
    const std::int64_t k = g * inputs, width = w.columns - k < inputs ? w.columns - k : inputs;
    std::uint16_t held[2][group_lanes]{};  // scales and offsets of the lanes that come as codes
    group.clear();
    for (std::int64_t lane = 0; lane < group_lanes; ++lane) {
      const auto [part, row] = places[lane];
      if (!part || part->kind == Source::blocks) continue;
      if (part->kind != Source::codes) {
        group.take(*part, row * w.columns + k, width, lane);
        continue;
      }
      group.take(static_cast<const std::uint8_t*>(part->data) + row * w.columns + k, width, lane);
      held[0][lane] = part->group_scales[row * groups + g];
      if (part->group_offsets) held[1][lane] = part->group_offsets[row * groups + g];
    }
    float found[2][group_lanes];
    if (w.spans.mixed && width == max_span) group.mix();
    if (any_plain) group.quantize(width, plain, found[0], found[1]);
    for (std::int64_t s = g * w.group_spans; s < spans && s < (g + 1) * w.group_spans; ++s) {
      std::uint32_t* out = first + s * w.step_lanes;
      std::memcpy(out, held, w.spans.offsets ? sizeof held : sizeof held[0]);
      if (any_plain) {
        std::memcpy(scales + s * group_lanes, found[0], sizeof found[0]);
        std::memcpy(scales + (spans + s) * group_lanes, found[1], sizeof found[1]);
      }
      group.write((s - g * w.group_spans) * w.spans.inputs, w.spans.inputs, out + w.spans.first_codes());
    }
  }
  for (std::int64_t lane = 0; lane < group_lanes; ++lane) {
    const auto [part, row] = places[lane];
    if (part && part->kind == Source::codes) {
      factors[lane] = part->factors[row];
    } else if (part && part->kind != Source::blocks) {
      factors[lane] = hold_scales(scales + lane, spans, w.spans.offsets, group_lanes,
                                  reinterpret_cast<std::uint16_t*>(first) + lane, 2 * w.step_lanes);
    }
  }
}

// The same in int8 or int4: plain matrices are quantized, codes are taken as they are, and so are blocks.
template <int bits>
void pack_spans(Pool& pool, const SourceMatrix* parts, const Weights& w) {
  pool.reserve(2 * w.steps * group_lanes * sizeof(float));
  parallel_for(pool, w.groups, [&](std::int64_t group, int worker) {
    Place places[group_lanes];
    bool all_blocks = true;
    for (std::int64_t lane = 0; lane < group_lanes; ++lane) {
      places[lane] = place_of(parts, w, group, lane);
      all_blocks &= places[lane].part && places[lane].part->kind == Source::blocks;
    }
    std::uint32_t* first = w.data + group * w.steps * w.step_lanes;
    float *factors = w.factors + group * group_lanes, *scales = static_cast<float*>(pool.own(worker));
    if (!all_blocks) pack_lanes<bits>(places, w, first, factors, scales);
    for (std::int64_t lane = 0; lane < group_lanes; ++lane) {
      const auto [part, row] = places[lane];
      if (part && part->kind == Source::blocks) factors[lane] = pack_lane(*part, row, w, lane, first, scales);
    }
  });
}

template <class Value>
void copy_table(Pool& pool, const SourceMatrix& m, std::int64_t columns, Value* out) {
  parallel_rows(pool, m.rows, m.rows * columns, [&](std::int64_t first, std::int64_t last) {
    convert(m, first * columns, (last - first) * columns, out + first * columns);
  });
}

// Rows of a table as bytes, with a scale for each `share` columns of a row.
inline void copy_quantized(Pool& pool, const SourceMatrix& m, std::int64_t columns, std::int64_t share,
                           std::int8_t* out, float* scales) {
  const std::int64_t shares = columns / share;
  parallel_rows(pool, m.rows, m.rows * columns * 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t part = first * shares; part < last * shares; ++part) {
      float values[piece];
      std::uint32_t largest = 0;
      for (std::int64_t k = 0; k < share; k += piece) {
        const std::int64_t width = share - k < piece ? share - k : piece;
        convert(m, part * share + k, width, values);
        const std::uint32_t bits = largest_bits(values, width);
        largest = bits > largest ? bits : largest;
      }
      const Scale scale = scale_of(largest);
      scales[part] = scale.scale;
      for (std::int64_t k = 0; k < share; k += piece) {
        const std::int64_t width = share - k < piece ? share - k : piece;
        convert(m, part * share + k, width, values);
        quantize(values, width, scale, out + part * share + k);
      }
    }
  });
}

}  // namespace inflight::INFLIGHT_ISA
