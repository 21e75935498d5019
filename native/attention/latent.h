// Values that are the first part of the keys, as in latent attention: 16 positions of them in the form in which a mix
// reads values, made of the form in which scores read keys.
//
// A key's lanes go down the positions (a step of the dimension after the other), a value's along the dimension. So this
// is a transposition: within a lane of several values, then of lanes. It is done once for a tile of positions, whatever
// number of queries and heads meet it there.
#pragma once
#include <utility>

#include "isa/simd.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

using bytes_of_lanes = std::uint8_t __attribute__((vector_size(lanes * 4)));

// per_step neighbours of lanes of per_step values each, a square of values, turned.
template <int per_step>
INLINE vu turn_squares(vu v) {
  if constexpr (per_step == 1) {
    return v;
  } else {
    constexpr int value = 4 / per_step, square = 4 * per_step;  // bytes
    const auto bytes = (bytes_of_lanes)v;
    return [&]<std::size_t... at>(std::index_sequence<at...>) {
      return (vu)__builtin_shufflevector(
          bytes, bytes, (at / square * square + at % 4 / value * 4 + at % square / 4 * value + at % value)...);
    }(std::make_index_sequence<lanes * 4>());
  }
}

// Elements of `size` lanes: a square of them, a vector a row, turned.
template <int size, int count>
INLINE void turn_rows(vu (&rows)[count]) {
  const auto round = [&]<int distance>(std::integral_constant<int, distance>) {
    for (int i = 0; i < count; ++i)
      if ((i & distance) == 0) exchange<distance * size>(rows[i], rows[i + distance]);
  };
  if constexpr (count > 1) round(std::integral_constant<int, 1>{});
  if constexpr (count > 2) round(std::integral_constant<int, 2>{});
  if constexpr (count > 4) round(std::integral_constant<int, 4>{});
  if constexpr (count > 8) round(std::integral_constant<int, 8>{});
}

// keys: of 16 positions, steps at a stride of `block` lanes → values [16 / per_step][width] lanes, of the first `width`
// dimensions (a multiple of 16). int8: from value + 128 to value.
template <int per_step>
void values_of_keys(const std::uint32_t* keys, std::int64_t block, std::int64_t width, std::uint32_t* values) {
  constexpr int count = lanes / per_step;  // vectors of a square, and values' rows that it fills
  static_assert(lanes % per_step == 0);
  for (std::int64_t column = 0; column < width; column += lanes)
    for (int part = 0; part < vectors; ++part) {
      vu rows[count];
      for (int i = 0; i < count; ++i) {
        const vu row = load<vu>(keys + (column / per_step + i) * block + part * lanes);
        rows[i] = turn_squares<per_step>(per_step == 4 ? row ^ 0x80808080u : row);
      }
      turn_rows<per_step>(rows);
      for (int i = 0; i < count; ++i) store(values + (part * count + i) * width + column, rows[i]);
    }
}

}  // namespace inflight::INFLIGHT_ISA
