// Tokens that are found in a text before it is merged: at each place the longest, the first place first.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/string_table.h"

namespace inflight {

class AddedTokens {
 public:
  void add(std::string_view text, std::int32_t id) {
    if (text.empty()) return;
    texts_.add(text);
    ids_.push_back(id);
    std::vector<std::uint32_t>& lengths = lengths_[static_cast<std::uint8_t>(text[0])];
    const auto size = static_cast<std::uint32_t>(text.size());
    const auto at = std::lower_bound(lengths.begin(), lengths.end(), size, std::greater<>());
    if (at == lengths.end() || *at != size) lengths.insert(at, size);
  }

  // between(begin, end) for text, token(id, begin, end) for a token, in order; text between two tokens may be empty.
  template <class Between, class Token>
  void split(std::string_view text, Between between, Token token) const {
    std::size_t begin = 0;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = longest_at(text.substr(at));
      if (!size) {
        ++at;
        continue;
      }
      if (at > begin) between(begin, at);
      token(ids_[texts_.find(text.substr(at, size))], at, at + size);
      begin = at += size;
    }
    if (text.size() > begin) between(begin, text.size());
  }

 private:
  std::size_t longest_at(std::string_view text) const {
    for (const std::uint32_t size : lengths_[static_cast<std::uint8_t>(text[0])])
      if (size <= text.size() && texts_.find(text.substr(0, size)) != StringTable::none) return size;
    return 0;
  }

  StringTable texts_;
  std::vector<std::int32_t> ids_;
  std::array<std::vector<std::uint32_t>, 256> lengths_;  // of those that begin with a byte, the longest first
};

}  // namespace inflight
