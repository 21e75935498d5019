// Byte-pair encoding over a model's vocabulary: the characters of a word, merged pair by pair, become tokens.
//
// Files say in two ways what is merged first: by a list of pairs, or by the rank of the token that a pair makes. A word
// becomes the tokens that the `tokenizers` library makes of it, which is the tests' reference. bpe_texts.h divides
// texts into words, and is Python's side.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/string_table.h"

namespace inflight {

// A token of a word, and how many bytes of the word it stands for.
struct WordToken {
  std::int32_t id;
  std::uint32_t bytes;
};

class BPE {
 public:
  // Of one text; its memory is used for word after word.
  struct Scratch;

  explicit BPE(StringTable tokens) : tokens_(std::move(tokens)) {}

  const StringTable& tokens() const { return tokens_; }

  // Merge these two; pairs that are added earlier are merged earlier. False where one of the three is no token.
  bool add_pair(std::string_view left, std::string_view right);
  void reserve_pairs(std::size_t pairs);

  // Merge what makes a token, those with the lowest order first. order: of each id, below 2^22. False where tokens are
  // too many or too long for that.
  bool merge_by_order(std::vector<std::uint32_t> order);

  // A word that is a token stays whole.
  bool keeps_words = false;
  // A character that is no token becomes the tokens of its bytes, or else this token; -1: it is left out.
  bool falls_back = false;
  std::int32_t unknown = StringTable::none;

  void set_byte_tokens();

  // All pairs that are merged, the first to be merged first: as a list of them says it.
  std::vector<std::pair<std::int32_t, std::int32_t>> pairs() const;

  void encode(std::string_view word, Scratch& scratch, std::vector<WordToken>& out) const;

 private:
  struct Symbol {
    std::int32_t id, before, behind;
    std::uint32_t begin, bytes;
    bool is_text;  // whether the token's text is the bytes that it stands for
  };
  struct Merge {
    std::uint64_t order;
    std::int32_t id;
  };
  struct Pair {
    std::uint64_t key = 0;
    std::int32_t rank = 0, id = 0;
  };
  struct Candidate {
    std::uint64_t order;
    std::int32_t place, id;
    bool operator<(const Candidate& other) const {  // a heap has the largest first
      return order != other.order ? order > other.order : place > other.place;
    }
  };

  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return (std::uint64_t{static_cast<std::uint32_t>(left)} + 1) << 32 | (static_cast<std::uint32_t>(right) + 1);
  }
  Pair& pair(std::uint64_t key);
  const Pair& pair(std::uint64_t key) const { return const_cast<BPE*>(this)->pair(key); }
  std::uint64_t order_of(std::int32_t id, std::string_view left) const;
  void split(std::string_view word, std::vector<Symbol>& symbols) const;
  bool find_merge(std::string_view word, const Symbol& left, const Symbol& right, Merge& found) const;

  StringTable tokens_;
  std::vector<Pair> pairs_;  // open addressing, a power of two
  std::size_t num_pairs_ = 0;
  std::int32_t next_rank_ = 0;
  std::vector<std::uint32_t> order_;  // empty where pairs say what is merged
  std::size_t longest_ = 0;           // bytes of a token
  std::int32_t byte_tokens_[256];

 public:
  struct Scratch {
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };
};

}  // namespace inflight
