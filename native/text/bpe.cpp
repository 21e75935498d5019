#include "text/bpe.h"

#include <algorithm>
#include <cstdio>

namespace inflight {

namespace {

// order, characters of the left token, id: 22 + 20 + 22 bits.
constexpr std::uint64_t max_tokens = 1u << 22, max_characters = 1u << 20;

}  // namespace

bool BPE::add_pair(std::string_view left, std::string_view right) {
  std::string whole(left);
  whole.append(right);
  const std::int32_t a = tokens_.find(left), b = tokens_.find(right), id = tokens_.find(whole);
  if (a == StringTable::none || b == StringTable::none || id == StringTable::none) return false;
  if (2 * (num_pairs_ + 1) > pairs_.size()) reserve_pairs(num_pairs_ + 1);
  Pair& found = pair(key_of(a, b));
  num_pairs_ += found.key == 0;
  found = {key_of(a, b), next_rank_++, id};  // of equal pairs the last counts
  return true;
}

void BPE::reserve_pairs(std::size_t pairs) {
  std::size_t wanted = 16;
  while (wanted < 2 * pairs) wanted *= 2;
  if (wanted <= pairs_.size()) return;
  std::vector<Pair> old(wanted);
  old.swap(pairs_);
  for (const Pair& one : old)
    if (one.key) pair(one.key) = one;
}

BPE::Pair& BPE::pair(std::uint64_t key) {
  const std::size_t mask = pairs_.size() - 1;
  std::uint64_t hash = key * 0x9E3779B97F4A7C15u;
  std::size_t at = (hash ^ hash >> 31) & mask;
  while (pairs_[at].key != 0 && pairs_[at].key != key) at = (at + 1) & mask;
  return pairs_[at];
}

bool BPE::merge_by_order(std::vector<std::uint32_t> order) {
  if (tokens_.numbers() > max_tokens) return false;
  for (std::size_t id = 0; id < tokens_.numbers(); ++id)
    longest_ = std::max(longest_, tokens_.text(static_cast<std::int32_t>(id)).size());
  order_ = std::move(order);
  return longest_ < max_characters;
}

void BPE::set_byte_tokens() {
  falls_back = true;
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    byte_tokens_[byte] = tokens_.find(name);
    falls_back &= byte_tokens_[byte] != StringTable::none;
  }
}

void BPE::split(std::string_view word, std::vector<Symbol>& symbols) const {
  const auto add = [&](std::int32_t id, std::size_t begin, std::size_t bytes, bool is_text) {
    const auto at = static_cast<std::int32_t>(symbols.size());
    symbols.push_back(
        {id, at - 1, at + 1, static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(bytes), is_text});
  };
  bool was_unknown = false;  // several unknown characters together are one unknown token
  for (std::size_t at = 0, bytes; at < word.size(); at += bytes) {
    bytes = character_bytes(word[at]);
    const std::int32_t id = tokens_.find(word.substr(at, bytes));
    if (id != StringTable::none) {
      add(id, at, bytes, true);
      was_unknown = false;
    } else if (falls_back) {
      for (std::size_t n = 0; n < bytes; ++n)
        add(byte_tokens_[static_cast<std::uint8_t>(word[at + n])], at + n, 1, false);
    } else if (unknown != StringTable::none) {
      if (was_unknown)
        symbols.back().bytes += static_cast<std::uint32_t>(bytes);
      else
        add(unknown, at, bytes, false);
      was_unknown = true;
    }
  }
  if (!symbols.empty()) symbols.back().behind = StringTable::none;
}

bool BPE::find_merge(std::string_view word, const Symbol& left, const Symbol& right, Merge& found) const {
  if (order_.empty()) {
    if (pairs_.empty()) return false;
    const Pair& one = pair(key_of(left.id, right.id));
    found = {static_cast<std::uint64_t>(one.rank), one.id};
    return one.key != 0;
  }
  const std::string_view first = tokens_.text(left.id), second = tokens_.text(right.id);
  // A token without text, as an unknown one may be, makes no other token.
  if (first.empty() || second.empty() || first.size() + second.size() > longest_) return false;
  if (left.is_text && right.is_text && left.begin + left.bytes == right.begin) {
    found.id = tokens_.find(word.substr(left.begin, left.bytes + right.bytes));
  } else {
    std::string whole(first);
    found.id = tokens_.find(whole.append(second));
  }
  if (found.id == StringTable::none) return false;
  found.order = order_of(found.id, first);
  return true;
}

// Of a token that is made of this left one and another: of equally good tokens the longest left one goes first.
std::uint64_t BPE::order_of(std::int32_t id, std::string_view left) const {
  const auto shorter = max_characters - 1 - static_cast<std::uint64_t>(characters(left));
  return (std::uint64_t{order_[id]} << 20 | shorter) << 22 | static_cast<std::uint64_t>(id);
}

std::vector<std::pair<std::int32_t, std::int32_t>> BPE::pairs() const {
  struct Ordered {
    std::uint64_t order;
    std::int32_t left, right;
  };
  std::vector<Ordered> found;
  for (const Pair& one : pairs_)
    if (one.key)
      found.push_back({static_cast<std::uint64_t>(one.rank), static_cast<std::int32_t>((one.key >> 32) - 1),
                       static_cast<std::int32_t>((one.key & 0xFFFFFFFFu) - 1)});
  for (std::size_t id = 0; !order_.empty() && id < tokens_.numbers(); ++id) {
    const std::string_view text = tokens_.text(static_cast<std::int32_t>(id));
    std::size_t at = text.empty() ? 0 : character_bytes(text[0]);
    for (; at < text.size(); at += character_bytes(text[at])) {
      const std::int32_t right = tokens_.find(text.substr(at)), left = tokens_.find(text.substr(0, at));
      if (left != StringTable::none && right != StringTable::none)
        found.push_back({order_of(static_cast<std::int32_t>(id), text.substr(0, at)), left, right});
    }
  }
  std::sort(found.begin(), found.end(), [](const Ordered& a, const Ordered& b) { return a.order < b.order; });
  std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
  for (const Ordered& one : found) pairs.emplace_back(one.left, one.right);
  return pairs;
}

void BPE::encode(std::string_view word, Scratch& scratch, std::vector<WordToken>& out) const {
  if (keeps_words) {
    const std::int32_t id = tokens_.find(word);
    if (id != StringTable::none) {
      out.push_back({id, static_cast<std::uint32_t>(word.size())});
      return;
    }
  }
  auto& [symbols, heap] = scratch;
  symbols.clear();
  heap.clear();
  split(word, symbols);
  Merge merge;
  const auto offer = [&](std::int32_t left, std::int32_t right) {
    if (!find_merge(word, symbols[left], symbols[right], merge)) return;
    heap.push_back({merge.order, left, merge.id});
    std::push_heap(heap.begin(), heap.end());
  };
  for (std::size_t at = 0; at + 1 < symbols.size(); ++at)
    offer(static_cast<std::int32_t>(at), static_cast<std::int32_t>(at) + 1);
  while (!heap.empty()) {
    const Candidate best = heap.front();
    std::pop_heap(heap.begin(), heap.end());
    heap.pop_back();
    Symbol& left = symbols[best.place];
    if (left.bytes == 0 || left.behind == StringTable::none) continue;  // merged into another, or the last by now
    Symbol& right = symbols[left.behind];
    if (!find_merge(word, left, right, merge) || merge.id != best.id) continue;  // another pair by now
    left.is_text = left.is_text && right.is_text && left.begin + left.bytes == right.begin;
    left.id = best.id;
    left.bytes += right.bytes;
    left.behind = right.behind;
    right.bytes = 0;
    if (left.behind != StringTable::none) {
      symbols[left.behind].before = best.place;
      offer(best.place, left.behind);
    }
    if (left.before != StringTable::none) offer(left.before, best.place);
  }
  for (const Symbol& one : symbols)
    if (one.bytes) out.push_back({one.id, one.bytes});
}

}  // namespace inflight
