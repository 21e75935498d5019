#include "text/suffix_index.h"

#include <algorithm>
#include <bit>
#include <random>

namespace inflight {

namespace {

// Of this process, odd: what collides in one collides in no other.
std::uint64_t seed() {
  static const std::uint64_t drawn = [] {
    std::random_device device;
    return (std::uint64_t{device()} << 32 | device()) | 1;
  }();
  return drawn;
}

// As the reference has it.
double chance_of(std::int32_t count, std::int32_t places, std::int32_t alike) {
  return static_cast<double>((3 * count - (count < places)) * alike) / (3 * places * alike + 9);
}

}  // namespace

// Places in one or two indexes that are alike as far as any, newest first, the own index's before the other's.
struct SuffixIndex::Places {
  struct Place {
    const SuffixIndex* of;
    std::int32_t position;  // of the last token that is alike; while drafting, of the last that was drafted
  };
  std::array<Place, 2 * max_places> all;
  std::int32_t count = 0, alike = 0;

  void add(const SuffixIndex* of, std::int32_t position, std::int32_t tokens) {
    if (tokens > alike) count = 0, alike = tokens;
    if (tokens == alike) all[count++] = {of, position};
  }
};

SuffixIndex::SuffixIndex() {
  seed();
  add_bucket();
}

// -- texts ------------------------------------------------------------------------------------------------------

void SuffixIndex::append(std::int32_t token_id) {
  push(token_id);
  ++size_;
  const std::int32_t position = end_ - 1, count = std::min(end_ - text_, levels.back());
  const Hashes hash = hashes(position, count);
  for (std::int32_t kind = 0; kind < kinds && levels[kind] <= count; ++kind) insert(position, kind, hash[kind]);
}

void SuffixIndex::end_text() {
  if (text_ == end_) return;
  push(boundary);
  text_ = end_;
}

std::int32_t SuffixIndex::drop_text() {
  const std::int32_t start = front_;
  std::int32_t position = start;
  for (; position < end_ && token(position) != boundary; ++position) {
    const std::int32_t count = std::min(position - start + 1, levels.back());
    const Hashes hash = hashes(position, count);
    for (std::int32_t kind = 0; kind < kinds && levels[kind] <= count; ++kind) remove(position, kind, hash[kind]);
  }
  const std::int32_t tokens = position - start;
  size_ -= tokens;
  front_ = std::min(position + 1, end_);
  text_ = std::max(text_, front_);
  const std::int32_t gone = front_ / page_tokens - first_page_;
  pages_.erase(pages_.begin(), pages_.begin() + std::min<std::int32_t>(gone, static_cast<std::int32_t>(pages_.size())));
  first_page_ += gone;
  if (pages_.capacity() > 4 * pages_.size()) pages_.shrink_to_fit();
  return tokens;
}

std::size_t SuffixIndex::bytes() const {
  return sizeof(SuffixIndex) + pages_.size() * sizeof(Page) + heads_.size() * sizeof(Heads) +
         (pages_.capacity() + heads_.capacity()) * sizeof(void*);
}

void SuffixIndex::push(std::int32_t token_id) {
  if (end_ / page_tokens - first_page_ == static_cast<std::int32_t>(pages_.size()))
    pages_.push_back(std::make_unique<Page>());
  page(end_).tokens[end_ % page_tokens] = token_id;
  ++end_;
}

// -- the table of runs ------------------------------------------------------------------------------------------

// Of the runs that end at a position, the tokens taken from the last to the first: a longer run's goes on where a
// shorter one's ends. count: tokens that the text has up to there.
SuffixIndex::Hashes SuffixIndex::hashes(std::int32_t position, std::int32_t count) const {
  Hashes found{};
  std::uint64_t hash = seed();
  std::int32_t taken = 0;
  for (std::int32_t kind = 0; kind < kinds && levels[kind] <= count; ++kind) {
    for (; taken < levels[kind]; ++taken) {
      hash = (hash ^ static_cast<std::uint64_t>(token(position - taken))) * seed();
      hash ^= hash >> 32;
    }
    found[kind] = hash;
  }
  return found;
}

std::int32_t SuffixIndex::bucket(std::uint64_t hash) const {
  const std::uint32_t doubled = std::bit_ceil(static_cast<std::uint32_t>(buckets_));
  const std::uint32_t found = static_cast<std::uint32_t>(hash) & (doubled - 1);
  return static_cast<std::int32_t>(found < static_cast<std::uint32_t>(buckets_) ? found : found & (doubled / 2 - 1));
}

// The link to the last place of the run that ends at the position in the text, which may be another index's; the link
// to nothing that ends the bucket where there is none.
std::int32_t* SuffixIndex::find(const SuffixIndex& text, std::int32_t position, std::int32_t kind,
                                std::uint64_t hash) const {
  std::int32_t* link = &head(bucket(hash));
  while (*link != none &&
         (*link % kinds != kind || alike(text, position, *link / kinds, levels[kind]) < levels[kind]))
    link = &next(*link);
  return link;
}

// How many tokens up to a position in the text and up to a place here are the same, at most `most`.
std::int32_t SuffixIndex::alike(const SuffixIndex& text, std::int32_t position, std::int32_t place,
                                std::int32_t most) const {
  most = std::min({most, position - text.text_ + 1, place - front_ + 1});
  std::int32_t same = 0;
  while (same < most && token(place - same) == text.token(position - same)) ++same;
  return same;
}

void SuffixIndex::insert(std::int32_t position, std::int32_t kind, std::uint64_t hash) {
  std::int32_t* link = find(*this, position, kind, hash);
  const std::int32_t before = *link, here = node(position, kind);
  *link = here;
  next(here) = before == none ? none : next(before);
  back(position, kind) = before == none ? 0 : position - before / kinds;
  if (before == none && ++entries_ > buckets_) add_bucket();
}

// A place that is not the last one of its run is in no bucket; the chain to it ends by itself.
void SuffixIndex::remove(std::int32_t position, std::int32_t kind, std::uint64_t hash) {
  std::int32_t* link = &head(bucket(hash));
  while (*link != none && *link != node(position, kind)) link = &next(*link);
  if (*link == none) return;
  *link = next(*link);
  --entries_;
  while (buckets_ > 1 && entries_ < buckets_ / 4 * 3) remove_bucket();
}

// Takes those that belong to the new bucket out of the one that they had been in.
void SuffixIndex::add_bucket() {
  const std::int32_t added = buckets_;
  if (added % page_heads == 0) heads_.push_back(std::make_unique<Heads>());
  head(added) = none;
  ++buckets_;
  if (added == 0) return;
  std::int32_t* link = &head(added ^ static_cast<std::int32_t>(std::bit_floor(static_cast<std::uint32_t>(added))));
  while (*link != none) {
    const std::int32_t one = *link, kind = one % kinds;
    if (bucket(hashes(one / kinds, levels[kind])[kind]) == added) {
      *link = next(one);
      next(one) = head(added);
      head(added) = one;
    } else {
      link = &next(one);
    }
  }
}

void SuffixIndex::remove_bucket() {
  const std::int32_t removed = --buckets_;
  std::int32_t* link = &head(removed ^ static_cast<std::int32_t>(std::bit_floor(static_cast<std::uint32_t>(removed))));
  while (*link != none) link = &next(*link);
  *link = head(removed);
  if (removed % page_heads != 0) return;
  heads_.pop_back();
  if (heads_.capacity() > 4 * heads_.size()) heads_.shrink_to_fit();
}

// -- drafts -----------------------------------------------------------------------------------------------------

// Those of a chain that begins with the latest, with how far each is like the text's end.
void SuffixIndex::add_places(const SuffixIndex& text, std::int32_t latest, std::int32_t kind, Places& places) const {
  std::int32_t place = latest;
  for (std::int32_t looked = 0; looked < max_places; ++looked) {
    places.add(this, place, alike(text, text.end_ - 1, place, depth));
    const std::int32_t distance = back(place, kind);
    if (distance == 0 || place - distance < front_) return;
    place -= distance;
  }
}

// The longest run that has another place here is found without the table.
void SuffixIndex::add_places_here(Places& places) const {
  const std::int32_t last = end_ - 1, count = std::min(end_ - text_, levels.back());
  std::int32_t longest = none, place = none;
  for (std::int32_t kind = 0; kind < kinds && levels[kind] <= count; ++kind) {
    const std::int32_t distance = back(last, kind);
    if (distance == 0 || last - distance < front_) break;
    longest = kind, place = last - distance;
  }
  if (longest != none) add_places(*this, place, longest, places);
}

void SuffixIndex::add_places_of(const SuffixIndex& text, Places& places) const {
  const std::int32_t last = text.end_ - 1, count = std::min(text.end_ - text.text_, levels.back());
  const Hashes hash = text.hashes(last, count);
  std::int32_t longest = none, place = none;
  for (std::int32_t kind = 0; kind < kinds && levels[kind] <= count; ++kind) {
    const std::int32_t found = *find(text, last, kind, hash[kind]);
    if (found == none) break;
    longest = kind, place = found / kinds;
  }
  if (longest != none) add_places(text, place, longest, places);
}

Draft SuffixIndex::propose(const SuffixIndex* others, std::int32_t most) const {
  Draft draft;
  if (text_ == end_) return draft;
  Places places;
  add_places_here(places);
  if (others != nullptr) others->add_places_of(*this, places);

  double all_right = 1;
  for (std::int32_t drafted = 0; drafted < most; ++drafted) {
    // What follows each place; behind the end of the text stands what was drafted.
    std::array<std::int32_t, 2 * max_places> follows, tokens, counts;
    std::int32_t following = 0, different = 0, best = 0;
    for (std::int32_t i = 0; i < places.count; ++i) {
      Places::Place place = places.all[i];
      const std::int32_t behind = ++place.position - place.of->end_;
      std::int32_t token_id = boundary;
      if (behind < 0) token_id = place.of->token(place.position);
      else if (place.of == this) token_id = draft.token_ids[behind];
      if (token_id == boundary) continue;
      places.all[following] = place;
      follows[following++] = token_id;
      const auto at = std::find(tokens.begin(), tokens.begin() + different, token_id) - tokens.begin();
      if (at == different) tokens[different] = token_id, counts[different++] = 0;
      ++counts[at];
    }
    if (following == 0) break;
    for (std::int32_t i = 1; i < different; ++i)
      if (counts[i] > counts[best]) best = i;
    const double chance = chance_of(counts[best], following, std::min(places.alike + drafted, depth));
    all_right *= chance;
    if (all_right < min_chance) break;
    draft.token_ids.push_back(tokens[best]);
    draft.chances.push_back(chance);
    places.count = 0;
    for (std::int32_t i = 0; i < following; ++i)
      if (follows[i] == tokens[best]) places.all[places.count++] = places.all[i];
  }
  return draft;
}

}  // namespace inflight
