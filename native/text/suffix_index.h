// Where the last tokens of a text stood before, and what followed there: an index over token ids, and drafts out of it.
//
// Texts stand one after the other; the last is still growing, and the oldest is forgotten first. Of every run of 1, 3
// and 8 tokens (`levels`) a table has the place where it ended last, and each place the one before it: a chain from the
// newest to the oldest, as in LZ77 compressors. The longest run that is found leads to a few places, which are compared
// further back; those that are longest alike say what comes next, by majority. The slow reference in Python
// (execution/drafters/suffix_reference.py) defines what is drafted. Compare: prompt lookup decoding, which takes the
// first such place, and SuffixDecoding (arXiv 2411.04975), which counts in a suffix tree; chains forget an entire text
// as easily as they have learned it.
//
// No call waits for all that is there already: tables grow and shrink by a bucket at a time (linear hashing, Litwin
// 1980), texts by pages. Runs are compared by their tokens, so that no hash decides; hashes are seeded, so that no text
// can be written to collide. Not for several threads at once.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace inflight {

// Tokens, and of each the chance that it is right if those before it are.
struct Draft {
  std::vector<std::int32_t> token_ids;
  std::vector<double> chances;
};

class SuffixIndex {
 public:
  static constexpr std::array<std::int32_t, 3> levels{1, 3, 8};
  static constexpr std::int32_t depth = 32;        // tokens that are compared at most
  static constexpr std::int32_t max_places = 16;  // of an index that are looked at
  static constexpr double min_chance = 0.05;     // that all drafts are right; further ones are not worth a look
  // An index never takes more than bytes_alone (a page at either end) and this for each token: 28 in its page, and for
  // up to 3 runs a head of 4, a third of which may be to spare; directories are doubled as they grow.
  static constexpr std::size_t bytes_per_token = 45, bytes_alone = 16 << 10;
  static constexpr std::int32_t max_positions = 600'000'000;  // in its life

  SuffixIndex();
  SuffixIndex(const SuffixIndex&) = delete;

  // The last text goes on. token_id: not below 0, and room() is not 0.
  void append(std::int32_t token_id);
  // What is appended next begins another text.
  void end_text();
  // Forgets the oldest text; returns how many tokens it had.
  std::int32_t drop_text();

  std::int32_t size() const { return size_; }  // tokens
  std::int32_t room() const { return max_positions - end_; }  // for tokens and ends of texts, in its life
  std::size_t bytes() const;

  // What may follow the last text's last token, at most `most` tokens: from what followed it in this index and in
  // `others`, another one or null.
  Draft propose(const SuffixIndex* others, std::int32_t most) const;

 private:
  static constexpr std::int32_t none = -1, boundary = -1, page_tokens = 256, page_heads = 256;
  static constexpr std::int32_t kinds = static_cast<std::int32_t>(levels.size());
  struct Page {
    std::array<std::int32_t, page_tokens> tokens;
    std::array<std::array<std::int32_t, page_tokens>, kinds> back;  // distance to where the same run ended before, or 0
    std::array<std::array<std::int32_t, page_tokens>, kinds> next;  // in the bucket, of the last place of a run
  };
  using Heads = std::array<std::int32_t, page_heads>;
  using Hashes = std::array<std::uint64_t, kinds>;
  struct Places;

  Page& page(std::int32_t position) const { return *pages_[position / page_tokens - first_page_]; }
  std::int32_t token(std::int32_t position) const { return page(position).tokens[position % page_tokens]; }
  std::int32_t& back(std::int32_t position, std::int32_t kind) const {
    return page(position).back[kind][position % page_tokens];
  }
  // A run's place in a bucket: position and kind in one number, and the one behind it.
  static std::int32_t node(std::int32_t position, std::int32_t kind) { return position * kinds + kind; }
  std::int32_t& next(std::int32_t node) const {
    return page(node / kinds).next[node % kinds][node / kinds % page_tokens];
  }
  std::int32_t& head(std::int32_t bucket) const { return (*heads_[bucket / page_heads])[bucket % page_heads]; }

  void push(std::int32_t token_id);
  Hashes hashes(std::int32_t position, std::int32_t count) const;
  std::int32_t bucket(std::uint64_t hash) const;
  std::int32_t* find(const SuffixIndex& text, std::int32_t position, std::int32_t kind, std::uint64_t hash) const;
  std::int32_t alike(const SuffixIndex& text, std::int32_t position, std::int32_t place, std::int32_t most) const;
  void insert(std::int32_t position, std::int32_t kind, std::uint64_t hash);
  void remove(std::int32_t position, std::int32_t kind, std::uint64_t hash);
  void add_bucket();
  void remove_bucket();
  void add_places(const SuffixIndex& text, std::int32_t latest, std::int32_t kind, Places& places) const;
  void add_places_here(Places& places) const;
  void add_places_of(const SuffixIndex& text, Places& places) const;

  std::vector<std::unique_ptr<Page>> pages_;
  std::vector<std::unique_ptr<Heads>> heads_;
  std::int32_t first_page_ = 0;
  std::int32_t front_ = 0, text_ = 0, end_ = 0;  // positions of the oldest token, the last text's first, the next
  std::int32_t size_ = 0, buckets_ = 0, entries_ = 0;
};

}  // namespace inflight
