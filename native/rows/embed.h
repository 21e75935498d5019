// Rows of tables for the tokens of a pass: their embeddings, those of positions and of token types.
#pragma once
#include <string>
#include <vector>

#include "rows/operation.h"

#ifdef INFLIGHT_ISA
#include "gemm/quantize.h"

namespace inflight::INFLIGHT_ISA {

template <int per_step>
void embed_from_packed(Pool& pool, const Weights& w, const std::int32_t* ids, std::int64_t tokens, float* out) {
  // Every lane of a row lies in a cache line of its own, hence the weight of a token.
  parallel_rows(pool, tokens, tokens * w.steps * 64, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      const std::uint32_t* from = w.data + ids[t] / group_lanes * w.steps * group_lanes + ids[t] % group_lanes;
      float* to = out + t * w.columns;
      for (std::int64_t s = 0; s < w.steps; ++s) {
        const std::uint32_t lane = from[s * group_lanes];
        const std::uint32_t low_bits = lane << 16, high_bits = lane & 0xffff0000u;
        if constexpr (per_step == 1) {
          std::memcpy(to + s, &lane, 4);
        } else {
          std::memcpy(to + 2 * s, &low_bits, 4);
          if (2 * s + 1 < w.columns) std::memcpy(to + 2 * s + 1, &high_bits, 4);
        }
      }
    }
  });
}

template <int bits>
void embed_from_spans(Pool& pool, const Weights& w, const std::int32_t* ids, std::int64_t tokens, float* out) {
  constexpr std::int64_t per_line = 32 / bits;
  parallel_rows(pool, tokens, tokens * w.columns * 8, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      const std::int64_t lane = ids[t] % group_lanes, inputs = w.spans.inputs;
      const std::uint32_t* from = w.data + ids[t] / group_lanes * w.steps * w.step_lanes;
      const float factor = w.factors[ids[t]];
      float* to = out + t * w.columns;
      for (std::int64_t k = 0; k < w.columns; ++k) {
        const std::uint32_t* step = from + k / inputs * w.step_lanes;
        const std::int64_t at = k % inputs;
        const auto* held = reinterpret_cast<const std::uint16_t*>(step) + lane;
        const std::uint32_t codes = step[w.spans.first_codes() + at / per_line * group_lanes + lane];
        const std::uint32_t code = codes >> (at % 4 * 8 + at % per_line / 4 * 4) & ((1u << bits) - 1);
        const int value = (bits == 4 ? w.spans.meanings[code] : static_cast<int>(code)) - 128;
        to[k] = static_cast<float>(value) * (from_f16(held[0]) * factor);
        if (w.spans.offsets) to[k] += from_f16(held[group_lanes]) * factor;
      }
      for (std::int64_t k = 0; w.spans.mixed && k + max_span <= w.columns; k += max_span)
        mix_channels(to + k, max_span, true);
    }
  });
}

template <class Value>
void embed_from_rows(Pool& pool, const Value* rows, std::int64_t columns, const std::int32_t* ids, std::int64_t tokens,
                     float* out) {
  parallel_rows(pool, tokens, tokens * columns * 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      const Value* from = rows + ids[t] * columns;
      for (std::int64_t k = 0; k < columns; ++k) {
        if constexpr (sizeof(Value) == 2) {
          out[t * columns + k] = from_bf16(from[k]);
        } else {
          out[t * columns + k] = from[k];
        }
      }
    }
  });
}

template <class Value>
void add_from_rows(Pool& pool, const Value* rows, std::int64_t columns, const std::int32_t* ids, std::int64_t tokens,
                   float* out) {
  parallel_rows(pool, tokens, tokens * columns * 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      const Value* from = rows + ids[t] * columns;
      for (std::int64_t k = 0; k < columns; ++k) {
        if constexpr (sizeof(Value) == 2) {
          out[t * columns + k] += from_bf16(from[k]);
        } else {
          out[t * columns + k] += from[k];
        }
      }
    }
  });
}

inline void embed_packed(Pool& pool, Format format, Hold hold, const Weights& w, const std::int32_t* ids,
                         std::int64_t tokens, float* out) {
  if (hold == Hold::int4) return embed_from_spans<4>(pool, w, ids, tokens, out);
  if (hold == Hold::int8) return embed_from_spans<8>(pool, w, ids, tokens, out);
  with(format, [&](auto value) { embed_from_packed<4 / sizeof value>(pool, w, ids, tokens, out); });
}

inline void embed_rows(Pool& pool, Format format, const void* rows, std::int64_t columns, const std::int32_t* ids,
                       std::int64_t tokens, float* out) {
  with(format, [&](auto value) {
    embed_from_rows(pool, static_cast<const decltype(value)*>(rows), columns, ids, tokens, out);
  });
}

inline void embed_bytes(Pool& pool, const std::int8_t* rows, const float* scales, std::int64_t columns,
                        std::int64_t share, const std::int32_t* ids, std::int64_t tokens, float* out) {
  parallel_rows(pool, tokens, tokens * columns * 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      const std::int8_t* from = rows + ids[t] * columns;
      const float* scale = scales + ids[t] * (columns / share);
      float* to = out + t * columns;
      for (std::int64_t begin = 0; begin < columns; begin += share)
        for (std::int64_t k = begin; k < begin + share; ++k) to[k] = static_cast<float>(from[k]) * scale[begin / share];
    }
  });
}

// out[t] += rows[ids[t]]
inline void add_rows_of(Pool& pool, Format format, const void* rows, std::int64_t columns, const std::int32_t* ids,
                        std::int64_t tokens, float* out) {
  with(format, [&](auto value) {
    add_from_rows(pool, static_cast<const decltype(value)*>(rows), columns, ids, tokens, out);
  });
}

}  // namespace inflight::INFLIGHT_ISA

#else

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

}  // namespace inflight

#endif
