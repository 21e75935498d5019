// Strings by their numbers, and numbers by their strings, in a hash table over bytes: of equal strings the first
// counts.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace inflight {

class StringTable {
 public:
  static constexpr std::int32_t none = -1;

  void reserve(std::size_t strings, std::size_t bytes) {
    bytes_.reserve(bytes);
    ends_.reserve(strings + 1);
    has_.reserve(strings);
    grow(strings);
  }

  // Give the next number to a string, or to none where an equal one has a number; returns the string's number.
  std::int32_t add(std::string_view text) {
    if (2 * (size_ + 1) > slots_.size()) grow(size_ + 1);
    std::int32_t& slot = slots_[place(text)];
    const bool is_new = slot == none;
    if (is_new) {
      slot = static_cast<std::int32_t>(has_.size());
      bytes_.append(text);
      ++size_;
    }
    end_number(is_new);
    return slot;
  }

  // The next number has no string.
  void skip() { end_number(false); }

  std::int32_t find(std::string_view text) const { return slots_.empty() ? none : slots_[place(text)]; }

  bool has(std::int64_t number) const {
    return number >= 0 && number < static_cast<std::int64_t>(has_.size()) && has_[number];
  }
  std::string_view text(std::int32_t number) const {
    const std::size_t begin = number ? ends_[number - 1] : 0;
    return std::string_view(bytes_).substr(begin, ends_[number] - begin);
  }

  std::size_t size() const { return size_; }
  std::size_t numbers() const { return has_.size(); }

 private:
  static std::uint64_t mixed(std::uint64_t x) {
    x *= 0x9E3779B97F4A7C15u;
    return x ^ x >> 29;
  }

  static std::uint64_t hash(std::string_view text) {
    std::uint64_t found = text.size();
    const char* at = text.data();
    std::size_t left = text.size();
    for (; left >= 8; at += 8, left -= 8) {
      std::uint64_t word;
      std::memcpy(&word, at, 8);
      found = mixed(found ^ word);
    }
    std::uint64_t word = 0;
    std::memcpy(&word, at, left);
    found = mixed(found ^ word);
    return mixed(found);
  }

  // The slot of a string, or the one that it would get.
  std::size_t place(std::string_view text) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = hash(text) & mask;
    while (slots_[at] != none && this->text(slots_[at]) != text) at = (at + 1) & mask;
    return at;
  }

  void grow(std::size_t strings) {
    std::size_t wanted = 16;
    while (wanted < 2 * strings) wanted *= 2;
    if (wanted <= slots_.size()) return;
    slots_.assign(wanted, none);
    for (std::size_t number = 0; number < has_.size(); ++number)
      if (has_[number]) slots_[place(text(static_cast<std::int32_t>(number)))] = static_cast<std::int32_t>(number);
  }

  void end_number(bool has) {
    has_.push_back(has);
    ends_.push_back(bytes_.size());
  }

  std::string bytes_;
  std::vector<std::size_t> ends_;
  std::vector<std::uint8_t> has_;
  std::vector<std::int32_t> slots_;
  std::size_t size_ = 0;
};

// Bytes of the character that begins with this byte of valid UTF-8.
inline std::size_t character_bytes(char first) {
  const auto byte = static_cast<std::uint8_t>(first);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

inline std::int64_t characters(std::string_view text) {
  std::int64_t count = 0;
  for (const char byte : text) count += (static_cast<std::uint8_t>(byte) & 0xC0) != 0x80;
  return count;
}

// Whether bytes are UTF-8, as Python reads it: no overlong forms, no surrogates, nothing above U+10FFFF.
inline bool is_utf8(std::string_view text) {
  const auto byte_at = [&](std::size_t at) { return static_cast<std::uint8_t>(text[at]); };
  for (std::size_t at = 0; at < text.size();) {
    const std::uint8_t first = byte_at(at);
    if (first < 0x80) {
      ++at;
      continue;
    }
    if (first < 0xC2 || first > 0xF4) return false;
    const std::size_t count = character_bytes(text[at]);
    if (at + count > text.size()) return false;
    std::uint32_t code = first & (0xFF >> (count + 1));
    for (std::size_t n = 1; n < count; ++n) {
      if ((byte_at(at + n) & 0xC0) != 0x80) return false;
      code = code << 6 | (byte_at(at + n) & 0x3F);
    }
    if ((count == 3 && (code < 0x800 || (code >= 0xD800 && code < 0xE000))) ||
        (count == 4 && (code < 0x10000 || code > 0x10FFFF)))
      return false;
    at += count;
  }
  return true;
}

}  // namespace inflight
