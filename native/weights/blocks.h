// Blocks of GGUF's types → numbers, or codes of 4 or 8 bits with scales and offsets of their groups.
//
// The numbers are those of execution/checkpoints/gguf/dequantize.py to the last bit: one rounding after the product,
// one after the sum.
#pragma once
#include "isa/float16.h"
#include "isa/simd.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

constexpr std::int64_t max_block = 256;  // values of one
constexpr std::uint32_t low_nibbles = 0x0f0f0f0fu;

INLINE float half_at(const std::uint8_t* at) {
  std::uint16_t half;
  std::memcpy(&half, at, 2);
  return from_f16(half);
}

INLINE std::uint32_t word_at(const std::uint8_t* at) {
  std::uint32_t word;
  std::memcpy(&word, at, 4);
  return word;
}

// -- codes of 4 bits --------------------------------------------------------------------------------------------------
// Where the first code stands; of how many bytes the lower halves come first, then the upper ones.
constexpr std::int64_t first_code(BlockType type) {
  switch (type) {
    case BlockType::q4_k: return 16;
    case BlockType::iq4_xs: return 8;
    case BlockType::q4_1: return 4;
    case BlockType::mxfp4: return 1;
    default: return 2;
  }
}
constexpr std::int64_t code_run(BlockType type) { return type == BlockType::q4_k ? 32 : 16; }

// What a code stands for.
template <BlockType type>
INLINE std::int32_t meaning(std::uint32_t code) {
  constexpr std::int8_t iq4[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  constexpr std::int8_t mxfp4[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // halves, doubled
  if constexpr (type == BlockType::q4_0) return static_cast<std::int32_t>(code) - 8;
  if constexpr (type == BlockType::iq4_nl || type == BlockType::iq4_xs) return iq4[code];
  if constexpr (type == BlockType::mxfp4) return mxfp4[code];
  return static_cast<std::int32_t>(code);
}

// Eight neighbouring codes of a group from input 8 · line on: four in the lower halves of bytes, four in the upper
// ones.
template <BlockType type>
INLINE std::uint32_t code_line(const std::uint8_t* block, std::int64_t group, std::int64_t line) {
  const std::uint8_t* run = block + first_code(type);
  if constexpr (code_run(type) == 32) {
    run += group / 2 * 32 + 8 * line;
    const int shift = group % 2 * 4;
    return (word_at(run) >> shift & low_nibbles) | (word_at(run + 4) >> shift & low_nibbles) << 4;
  } else {
    run += group * 16 + line % 2 * 8;
    const std::uint32_t first = word_at(run), second = word_at(run + 4);
    if (line < 2) return (first & low_nibbles) | (second & low_nibbles) << 4;
    return (first >> 4 & low_nibbles) | (second & ~low_nibbles);
  }
}

// Of Q4_K and Q5_K: the scales and offsets of a block's groups, six bits each of twelve bytes.
INLINE void k_scales(const std::uint8_t* block, float* scales, float* offsets) {
  const float scale = half_at(block), offset = half_at(block + 2);
  const std::uint8_t* six = block + 4;
  for (int g = 0; g < 4; ++g) {
    const int high_scale = six[g] >> 2 & 48, high_offset = six[g + 4] >> 2 & 48;
    scales[g] = scale * static_cast<float>(six[g] & 63);
    offsets[g] = -(offset * static_cast<float>(six[g + 4] & 63));
    scales[g + 4] = scale * static_cast<float>((six[g + 8] & 15) | high_scale);
    offsets[g + 4] = -(offset * static_cast<float>(six[g + 8] >> 4 | high_offset));
  }
}

// Of a block's groups; offsets are written where the type has some.
template <BlockType type>
INLINE void group_scales(const std::uint8_t* block, float* scales, float* offsets) {
  if constexpr (type == BlockType::q4_k || type == BlockType::q5_k) {
    k_scales(block, scales, offsets);
  } else if constexpr (type == BlockType::iq4_xs) {
    const float scale = half_at(block);
    for (int g = 0; g < 8; ++g) {
      const int low = block[4 + g / 2] >> g % 2 * 4 & 15, high = block[2 + g / 4] >> g % 4 * 2 & 3;
      scales[g] = scale * static_cast<float>((low | high << 4) - 32);
    }
  } else if constexpr (type == BlockType::q6_k) {
    const float scale = half_at(block + 208);
    for (int g = 0; g < 16; ++g) scales[g] = scale * static_cast<float>(static_cast<std::int8_t>(block[192 + g]));
  } else if constexpr (type == BlockType::mxfp4) {  // 2^(byte − 128), below 2⁻¹²⁶ a subnormal
    const std::uint32_t exponent = block[0];
    *scales = of_bits(exponent > 1 ? (exponent - 1) << 23 : 0x200000u << exponent);
  } else {
    *scales = half_at(block);
    if constexpr (has_offsets(type)) *offsets = half_at(block + 2);
  }
}

// -- codes of 8 bits --------------------------------------------------------------------------------------------------
// The whole numbers of a block.
template <BlockType type>
INLINE void whole_numbers(const std::uint8_t* block, std::int8_t* out) {
  if constexpr (type == BlockType::q8_0) {
    std::memcpy(out, block + 2, 32);
  } else if constexpr (type == BlockType::q5_0 || type == BlockType::q5_1) {
    const std::uint8_t* from = block + (type == BlockType::q5_1 ? 8 : 6);
    const std::uint32_t high = word_at(from - 4);
    for (int k = 0; k < 32; ++k) {
      const int code = (from[k % 16] >> k / 16 * 4 & 15) | static_cast<int>(high >> k & 1) << 4;
      out[k] = static_cast<std::int8_t>(type == BlockType::q5_1 ? code : code - 16);
    }
  } else if constexpr (type == BlockType::q5_k) {
    for (int g = 0; g < 8; ++g)
      for (int k = 0; k < 32; ++k)
        out[32 * g + k] =
            static_cast<std::int8_t>((block[48 + g / 2 * 32 + k] >> g % 2 * 4 & 15) | (block[16 + k] >> g & 1) << 4);
  } else {
    static_assert(type == BlockType::q6_k);
    for (int group = 0; group < 16; ++group) {  // of 16 values: a vector's steps are alike in all of them
      const int half = group / 8, first = group % 8 * 16;  // of the half's 128
      const std::uint8_t *low = block + 64 * half + first % 64, *high = block + 128 + 32 * half + first % 32;
      for (int k = 0; k < 16; ++k)
        out[16 * group + k] =
            static_cast<std::int8_t>(((low[k] >> first / 64 * 4 & 15) | (high[k] >> first / 32 * 2 & 3) << 4) - 32);
    }
  }
}

// -- numbers ----------------------------------------------------------------------------------------------------------
// Of one block of so many values.
template <BlockType type>
INLINE void numbers(const std::uint8_t* block, std::int64_t values, float* out) {
  constexpr std::int64_t group = group_inputs(type);
  float scales[16], offsets[16];
  group_scales<type>(block, scales, offsets);
  std::int8_t whole[max_block];
  if constexpr (has_codes(type)) {
    constexpr std::int64_t run = code_run(type);
    for (std::int64_t k = 0; k < values; ++k) {
      const std::uint8_t byte = block[first_code(type) + k / (2 * run) * run + k % run];
      whole[k] = static_cast<std::int8_t>(meaning<type>(byte >> k / run % 2 * 4 & 15));
    }
  } else {
    whole_numbers<type>(block, whole);
  }
  for (std::int64_t k = 0; k < values; ++k) {
    const float value = static_cast<float>(whole[k]) * scales[k / group];
    out[k] = has_offsets(type) ? value + offsets[k / group] : value;
  }
}

// then(the type as one that the compiler knows).
template <BlockType type>
struct KnownType {
  static constexpr BlockType value = type;
};

template <class Then>
INLINE void with_type(BlockType type, Then&& then) {
  switch (type) {
    case BlockType::q4_0: return then(KnownType<BlockType::q4_0>{});
    case BlockType::q4_1: return then(KnownType<BlockType::q4_1>{});
    case BlockType::q4_k: return then(KnownType<BlockType::q4_k>{});
    case BlockType::iq4_nl: return then(KnownType<BlockType::iq4_nl>{});
    case BlockType::iq4_xs: return then(KnownType<BlockType::iq4_xs>{});
    case BlockType::mxfp4: return then(KnownType<BlockType::mxfp4>{});
    case BlockType::q5_0: return then(KnownType<BlockType::q5_0>{});
    case BlockType::q5_1: return then(KnownType<BlockType::q5_1>{});
    case BlockType::q8_0: return then(KnownType<BlockType::q8_0>{});
    case BlockType::q5_k: return then(KnownType<BlockType::q5_k>{});
    case BlockType::q6_k: return then(KnownType<BlockType::q6_k>{});
  }
}

// `count` values from `at` on, both whole blocks.
inline void numbers(const SourceMatrix& m, std::int64_t at, std::int64_t count, float* out) {
  const auto& [type, values, nbytes] = m.blocks;
  const auto* block = static_cast<const std::uint8_t*>(m.data) + at / values * nbytes;
  with_type(type, [&, values = values, nbytes = nbytes](auto known) {
    for (std::int64_t done = 0; done < count; done += values, block += nbytes)
      numbers<decltype(known)::value>(block, values, out + done);
  });
}

}  // namespace inflight::INFLIGHT_ISA
